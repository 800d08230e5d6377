// An MLP by hand, trained data-parallel in C++: as mlp.c, but the gradients are written straight
// into noria's memory (arena mode), so that nothing is copied, and each step tells what it hid.
//
//   c++ -std=c++20 -o mlp mlp.cc $(pkg-config --cflags --libs noria)
//   ./mlp 2                                           two ranks here; no RDMA device is needed
//   torchrun --nproc-per-node 2 --no-python ./mlp     or rank and size from a launcher
//
// Exit: 0 the losses are those of one process that sees the joined batch, within rounding, and the
// parameters are the same, bit by bit, on all ranks; 1 they are not, or something failed; 2 usage.
#include <noria/bucketing.h>
#include <noria/observe.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr std::array<size_t, 4> kWidths{8, 32, 32, 1};
constexpr size_t kLayers = kWidths.size() - 1;
constexpr size_t kBatch = 48;
constexpr int kSteps = 60;
constexpr float kLearningRate = 0.1F;
constexpr double kRounding = 1e-5;  // of a loss, relative; sums in another order differ so much

// ---- a model, and its gradients -----------------------------------------------------------------

// Views: whoever trains says where the numbers lie.
struct Layer {
  std::span<float> weight;  // row by row, one a output
  std::span<float> bias;
};
using Layers = std::array<Layer, kLayers>;

size_t weights(size_t layer) { return kWidths[layer] * kWidths[layer + 1]; }
size_t biases(size_t layer) { return kWidths[layer + 1]; }

// Layers in memory of their own, without gaps.
class OwnLayers {
 public:
  OwnLayers() {
    size_t numel = 0, at = 0;
    for (size_t l = 0; l < kLayers; ++l) numel += weights(l) + biases(l);
    memory_.resize(numel);
    for (size_t l = 0; l < kLayers; ++l) {
      layers_[l].weight = std::span(memory_).subspan(at, weights(l));
      layers_[l].bias = std::span(memory_).subspan(at + weights(l), biases(l));
      at += weights(l) + biases(l);
    }
  }
  const Layers& get() const { return layers_; }
  std::span<const float> memory() const { return memory_; }

 private:
  std::vector<float> memory_;
  Layers layers_;
};

class Random {
 public:
  explicit Random(uint32_t seed) : bits_(seed) {}
  float next() {  // in [-1, 1)
    bits_ = bits_ * 1664525U + 1013904223U;
    return static_cast<float>(static_cast<int32_t>(bits_)) * 0x1p-31F;
  }

 private:
  uint32_t bits_;
};

void initialize(const Layers& model) {
  Random random(7);
  for (size_t l = 0; l < kLayers; ++l) {
    const float scale = 1 / std::sqrt(static_cast<float>(kWidths[l]));
    for (float& weight : model[l].weight) weight = random.next() * scale;
    std::fill(model[l].bias.begin(), model[l].bias.end(), 0.0F);
  }
}

// Activations of one sample, layer by layer; values[0] is the input.
struct Sample {
  std::array<std::vector<float>, kLayers + 1> values;
  std::vector<float> slopes;  // of the loss by the sums of the layer that backward is at
};

// Returns the target. The same in every process.
float make_input(size_t number, std::vector<float>& input) {
  Random random(static_cast<uint32_t>(number) * 2654435761U);
  random.next();
  input.resize(kWidths[0]);
  for (float& value : input) value = random.next();
  return input[0] * input[1] + 0.5F * input[2] - input[3];
}

void forward(const Layers& model, Sample& sample) {
  for (size_t l = 0; l < kLayers; ++l) {
    const std::vector<float>& in = sample.values[l];
    std::vector<float>& out = sample.values[l + 1];
    out.assign(model[l].bias.begin(), model[l].bias.end());
    for (size_t o = 0; o < out.size(); ++o) {
      for (size_t i = 0; i < in.size(); ++i) out[o] += model[l].weight[o * in.size() + i] * in[i];
      if (l + 1 < kLayers) out[o] = std::tanh(out[o]);
    }
  }
}

// Adds the sample's gradients of one layer, and moves its slopes to the layer below.
void backward(const Layer& layer, const std::vector<float>& in, Sample& sample,
              const Layer& gradient) {
  std::vector<float> below(in.size());
  for (size_t o = 0; o < sample.slopes.size(); ++o) {
    gradient.bias[o] += sample.slopes[o];
    for (size_t i = 0; i < in.size(); ++i) {
      gradient.weight[o * in.size() + i] += sample.slopes[o] * in[i];
      below[i] += sample.slopes[o] * layer.weight[o * in.size() + i];
    }
  }
  for (size_t i = 0; i < in.size(); ++i) below[i] *= 1 - in[i] * in[i];  // the slope of tanh
  sample.slopes = std::move(below);
}

// Samples [first, first + count) of a step's batch: returns the mean of their losses and writes the
// mean gradients, the last layer's first. `on_gradients` is told of each layer that is complete.
double run_samples(const Layers& model, int step, size_t first, size_t count,
                   const Layers& gradients, const std::function<void(size_t)>& on_gradients) {
  std::vector<Sample> samples(count);
  double loss = 0;
  for (size_t s = 0; s < count; ++s) {
    const float target =
        make_input(static_cast<size_t>(step) * kBatch + first + s, samples[s].values[0]);
    forward(model, samples[s]);
    const float error = samples[s].values[kLayers][0] - target;
    loss += static_cast<double>(error) * error / static_cast<double>(count);
    samples[s].slopes = {2 * error / static_cast<float>(count)};
  }
  for (size_t l = kLayers; l-- > 0;) {
    std::fill(gradients[l].weight.begin(), gradients[l].weight.end(), 0.0F);
    std::fill(gradients[l].bias.begin(), gradients[l].bias.end(), 0.0F);
    for (Sample& sample : samples) backward(model[l], sample.values[l], sample, gradients[l]);
    on_gradients(l);  // the layers below are still to come
  }
  return loss;
}

void descend(std::span<float> parameter, std::span<const float> gradient) {
  for (size_t i = 0; i < parameter.size(); ++i) parameter[i] -= kLearningRate * gradient[i];
}
void descend(const Layers& model, const Layers& gradients) {
  for (size_t l = 0; l < kLayers; ++l) {
    descend(model[l].weight, gradients[l].weight);
    descend(model[l].bias, gradients[l].bias);
  }
}

// ---- noria --------------------------------------------------------------------------------------

void require(noria_status status, const char* what) {
  if (status == NORIA_OK) return;
  std::string text(noria_last_error(nullptr, 0), '\0');
  noria_last_error(text.data(), text.size() + 1);
  throw std::runtime_error(std::string(what) + ": " + noria_status_name(status) + ": " + text);
}

struct Destroy {
  void operator()(noria_comm* comm) const { noria_comm_destroy(comm); }
  void operator()(noria_reducer* reducer) const { noria_reducer_destroy(reducer); }
};
using Comm = std::unique_ptr<noria_comm, Destroy>;

// Gradients that live in noria's memory.
class Reducer {
 public:
  explicit Reducer(noria_comm* comm) {
    noria_reducer_config config = NORIA_REDUCER_CONFIG_INIT;
    config.arena = 1;
    noria_reducer* reducer = nullptr;
    require(noria_reducer_create(comm, &config, &reducer), "noria_reducer_create");
    reducer_.reset(reducer);
    for (size_t l = 0; l < kLayers; ++l) {  // in the order of the forward pass
      const std::string name = "layer" + std::to_string(l);
      weight_ids_[l] = add(name + ".weight", weights(l));
      bias_ids_[l] = add(name + ".bias", biases(l));
    }
    require(noria_reducer_seal(reducer), "noria_reducer_seal");
    for (size_t l = 0; l < kLayers; ++l) gradients_[l] = {view(weight_ids_[l]), view(bias_ids_[l])};
  }

  const Layers& gradients() const { return gradients_; }
  void begin() { require(noria_step_begin(reducer_.get(), 0), "noria_step_begin"); }
  void on_gradients(size_t layer) {  // the hook of a framework
    require(noria_grad_ready(reducer_.get(), bias_ids_[layer], nullptr, nullptr),
            "noria_grad_ready");
    require(noria_grad_ready(reducer_.get(), weight_ids_[layer], nullptr, nullptr),
            "noria_grad_ready");
  }
  // Afterwards gradients() are averages.
  noria_step_report end() {
    noria_step_report report = NORIA_STEP_REPORT_INIT;
    require(noria_step_end(reducer_.get(), nullptr, &report), "noria_step_end");
    return report;
  }

 private:
  uint32_t add(const std::string& name, size_t numel) {
    noria_tensor_desc tensor = NORIA_TENSOR_DESC_INIT;
    tensor.name = name.c_str();
    tensor.dtype = NORIA_FLOAT32;
    tensor.numel = numel;
    uint32_t id = 0;
    require(noria_reducer_add(reducer_.get(), &tensor, &id), "noria_reducer_add");
    return id;
  }
  std::span<float> view(uint32_t id) {
    void* memory = nullptr;
    uint64_t bytes = 0;
    require(noria_reducer_view(reducer_.get(), id, &memory, &bytes), "noria_reducer_view");
    return {static_cast<float*>(memory), static_cast<size_t>(bytes / sizeof(float))};
  }

  std::unique_ptr<noria_reducer, Destroy> reducer_;
  std::array<uint32_t, kLayers> weight_ids_{}, bias_ids_{};
  Layers gradients_;
};

std::vector<float> reduce(noria_comm* comm, std::span<const float> values, noria_op op) {
  std::vector<float> result(values.size());
  require(noria_all_reduce(comm, values.data(), result.data(), values.size(), NORIA_FLOAT32, op,
                           nullptr, nullptr),
          "noria_all_reduce");
  return result;
}

// ---- training -----------------------------------------------------------------------------------

bool train(noria_comm* comm, int32_t rank, int32_t size) {
  Reducer reducer(comm);
  const OwnLayers model, alone, alone_gradients;
  initialize(model.get());
  initialize(alone.get());
  const size_t share = kBatch / static_cast<size_t>(size);
  double first_loss = 0, loss = 0, worst = 0;
  noria_step_report report{};
  for (int step = 0; step < kSteps; ++step) {
    reducer.begin();
    loss = run_samples(model.get(), step, static_cast<size_t>(rank) * share, share,
                       reducer.gradients(), [&](size_t layer) { reducer.on_gradients(layer); });
    report = reducer.end();
    descend(model.get(), reducer.gradients());
    require(noria_all_reduce(comm, &loss, &loss, 1, NORIA_FLOAT64, NORIA_AVG, nullptr, nullptr),
            "noria_all_reduce");

    const double expected =
        run_samples(alone.get(), step, 0, kBatch, alone_gradients.get(), [](size_t) {});
    descend(alone.get(), alone_gradients.get());
    worst = std::max(worst, std::abs(loss - expected) / expected);
    if (step == 0) first_loss = loss;
  }
  // The largest and the smallest value over the ranks are one: no rank's parameters differ.
  const bool is_same =
      reduce(comm, model.memory(), NORIA_MAX) == reduce(comm, model.memory(), NORIA_MIN);
  if (rank == 0)
    std::printf(
        "mlp: %d ranks, loss %.4f to %.4f in %d steps; off from one process by %.1e at most\n"
        "mlp: the last step sent for %.3f ms and ended %.3f ms after its last gradient\n",
        size, first_loss, loss, kSteps, worst, static_cast<double>(report.communication_ns) * 1e-6,
        static_cast<double>(report.exposed_ns) * 1e-6);
  if (!(worst <= kRounding)) throw std::runtime_error("training went another way");
  if (!is_same) throw std::runtime_error("the ranks' parameters differ");
  if (!(loss < first_loss)) throw std::runtime_error("nothing was learnt");
  return true;
}

// `id` null: rank and size come from the launcher's variables.
int run_rank(const noria_unique_id* id, int32_t rank, int32_t size) try {
  noria_comm_config config = NORIA_COMM_CONFIG_INIT;
  config.id = id;
  config.rank = rank;
  config.size = size;
  noria_comm* created = nullptr;
  require(noria_comm_create(&config, &created), "noria_comm_create");
  const Comm comm(created);
  require(noria_comm_rank(created, &rank), "noria_comm_rank");
  require(noria_comm_size(created, &size), "noria_comm_size");
  if (kBatch % static_cast<size_t>(size) != 0)
    throw std::runtime_error("so many ranks cannot share a batch of " + std::to_string(kBatch));
  train(created, rank, size);
  return 0;
} catch (const std::exception& error) {
  std::fprintf(stderr, "mlp: rank %d: %s\n", rank, error.what());
  return 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 1) return run_rank(nullptr, -1, -1);
  const long size = std::strtol(argv[1], nullptr, 10);
  if (argc != 2 || size < 1 || kBatch % static_cast<size_t>(size) != 0) {
    std::fprintf(stderr, "usage: mlp [RANKS]; RANKS divides %zu; without it a launcher says\n",
                 kBatch);
    return 2;
  }
  noria_unique_id id{};
  if (noria_get_unique_id(&id) != NORIA_OK) {
    std::fprintf(stderr, "mlp: no interface to listen on\n");
    return 1;
  }
  bool failed = false;
  for (int32_t rank = 0; rank < size; ++rank) {
    const pid_t child = fork();
    if (child == 0) return run_rank(&id, rank, static_cast<int32_t>(size));
    failed |= child < 0;  // the others give up when it does not come
  }
  for (int status = 0; wait(&status) > 0;) failed |= !WIFEXITED(status) || WEXITSTATUS(status) != 0;
  return failed ? 1 : 0;
}
