// The shapes of well-known models, in the order in which their frameworks register them.

#include <array>
#include <utility>

#include "base/units.hpp"
#include "perf/trace.hpp"

namespace noria::perf {
namespace {

using Shape = std::vector<int64_t>;

class Builder {
 public:
  explicit Builder(std::string name) { trace_.name = std::move(name); }

  void add(const std::string& name, Shape shape) {
    TraceTensor tensor{.name = name, .shape = std::move(shape)};
    for (const int64_t extent : tensor.shape) tensor.numel *= static_cast<uint64_t>(extent);
    trace_.tensors.push_back(std::move(tensor));
  }
  void weight(const std::string& module, Shape shape) { add(module + ".weight", std::move(shape)); }
  // A weight and a bias as long as its first extent.
  void biased(const std::string& module, Shape shape) {
    const int64_t outputs = shape.front();
    weight(module, std::move(shape));
    add(module + ".bias", {outputs});
  }
  // Batch or layer norm.
  void norm(const std::string& module, int64_t d) { biased(module, {d}); }

  Trace take() { return std::move(trace_); }

 private:
  Trace trace_;
};

std::string indexed(const std::string& prefix, int64_t index, const std::string& rest) {
  return prefix + std::to_string(index) + "." + rest;
}

Trace resnet(const char* name, std::array<int, 4> blocks, bool bottleneck) {
  Builder b(name);
  b.weight("conv1", {64, 3, 7, 7});
  b.norm("bn1", 64);
  int64_t in = 64;
  for (size_t stage = 0; stage < blocks.size(); ++stage) {
    const int64_t width = int64_t{64} << stage;
    const int64_t out = bottleneck ? 4 * width : width;
    for (int block = 0; block < blocks[stage]; ++block) {
      const std::string at =
          indexed("layer", static_cast<int64_t>(stage) + 1, std::to_string(block) + ".");
      if (bottleneck) {
        b.weight(at + "conv1", {width, in, 1, 1});
        b.norm(at + "bn1", width);
        b.weight(at + "conv2", {width, width, 3, 3});
        b.norm(at + "bn2", width);
        b.weight(at + "conv3", {out, width, 1, 1});
        b.norm(at + "bn3", out);
      } else {
        b.weight(at + "conv1", {width, in, 3, 3});
        b.norm(at + "bn1", width);
        b.weight(at + "conv2", {width, width, 3, 3});
        b.norm(at + "bn2", width);
      }
      if (block == 0 && in != out) {
        b.weight(at + "downsample.0", {out, in, 1, 1});
        b.norm(at + "downsample.1", out);
      }
      in = out;
    }
  }
  b.biased("fc", {1000, in});
  return b.take();
}

Trace vgg16() {
  constexpr std::array<int64_t, 13> kWidths{64,  64,  128, 128, 256, 256, 256,
                                            512, 512, 512, 512, 512, 512};
  Builder b("vgg16");
  int64_t in = 3;
  for (size_t i = 0; i < kWidths.size(); ++i) {
    b.biased("features." + std::to_string(i), {kWidths[i], in, 3, 3});
    in = kWidths[i];
  }
  b.biased("classifier.0", {4096, 25088});
  b.biased("classifier.3", {4096, 4096});
  b.biased("classifier.6", {1000, 4096});
  return b.take();
}

// Encoder and pooler.
Trace bert(const char* name, int64_t layers, int64_t d, int64_t ff) {
  Builder b(name);
  b.weight("embeddings.word", {30522, d});
  b.weight("embeddings.position", {512, d});
  b.weight("embeddings.type", {2, d});
  b.norm("norm", d);
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (const char* part : {"query", "key", "value", "output"})
      b.biased(indexed("layer.", layer, std::string("attention.") + part), {d, d});
    b.norm(indexed("layer.", layer, "attention.norm"), d);
    b.biased(indexed("layer.", layer, "up"), {ff, d});
    b.biased(indexed("layer.", layer, "down"), {d, ff});
    b.norm(indexed("layer.", layer, "norm"), d);
  }
  b.biased("pooler", {d, d});
  return b.take();
}

// The head is tied to wte, so it adds nothing.
Trace gpt2(const char* name, int64_t layers, int64_t d) {
  Builder b(name);
  b.weight("wte", {50257, d});
  b.weight("wpe", {1024, d});
  const auto projection = [&b](const std::string& module, int64_t in, int64_t out) {
    b.weight(module, {in, out});
    b.add(module + ".bias", {out});
  };
  for (int64_t layer = 0; layer < layers; ++layer) {
    b.norm(indexed("h.", layer, "ln_1"), d);
    projection(indexed("h.", layer, "attn.c_attn"), d, 3 * d);
    projection(indexed("h.", layer, "attn.c_proj"), d, d);
    b.norm(indexed("h.", layer, "ln_2"), d);
    projection(indexed("h.", layer, "mlp.c_fc"), d, 4 * d);
    projection(indexed("h.", layer, "mlp.c_proj"), 4 * d, d);
  }
  b.norm("ln_f", d);
  return b.take();
}

// Of the width of 7B.
Trace llama(const char* name, int64_t layers) {
  constexpr int64_t kD = 4096, kFf = 11008, kVocabulary = 32000;
  Builder b(name);
  b.weight("embed_tokens", {kVocabulary, kD});
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (const char* part : {"q_proj", "k_proj", "v_proj", "o_proj"})
      b.weight(indexed("layers.", layer, std::string("self_attn.") + part), {kD, kD});
    b.weight(indexed("layers.", layer, "mlp.gate_proj"), {kFf, kD});
    b.weight(indexed("layers.", layer, "mlp.up_proj"), {kFf, kD});
    b.weight(indexed("layers.", layer, "mlp.down_proj"), {kD, kFf});
    b.weight(indexed("layers.", layer, "input_norm"), {kD});
    b.weight(indexed("layers.", layer, "post_attention_norm"), {kD});
  }
  b.weight("norm", {kD});
  b.weight("lm_head", {kVocabulary, kD});
  return b.take();
}

Trace vit_b16() {
  constexpr int64_t kD = 768, kFf = 3072, kPatch = 16;
  Builder b("vit-b16");
  b.add("class_token", {1, 1, kD});
  b.biased("conv_proj", {kD, 3, kPatch, kPatch});
  b.add("encoder.pos_embedding", {1, (224 / kPatch) * (224 / kPatch) + 1, kD});
  for (int64_t block = 0; block < 12; ++block) {
    const auto at = [block](const char* part) { return indexed("encoder.", block, part); };
    b.norm(at("ln_1"), kD);
    b.biased(at("attention.in_proj"), {3 * kD, kD});
    b.biased(at("attention.out_proj"), {kD, kD});
    b.norm(at("ln_2"), kD);
    b.biased(at("mlp.0"), {kFf, kD});
    b.biased(at("mlp.3"), {kD, kFf});
  }
  b.norm("encoder.ln", kD);
  b.biased("head", {1000, kD});
  return b.take();
}

// Only what is all-reduced: the tables are spread over the ranks.
// No model: what a reducer of very many tensors costs.
Trace many_small() {
  Builder b("many-small");
  for (int64_t i = 0; i < 100'000; ++i) b.weight(std::to_string(i), {64});
  return b.take();
}

Trace dlrm() {
  Builder b("dlrm");
  const auto layers = [&b](const std::string& name, const std::vector<int64_t>& widths) {
    for (size_t i = 0; i + 1 < widths.size(); ++i)
      b.biased(name + std::to_string(i), {widths[i + 1], widths[i]});
  };
  layers("bottom.", {13, 512, 256, 128});
  layers("top.", {479, 1024, 1024, 512, 256, 1});
  return b.take();
}

// What one call a tensor costs most: many calls, few bytes.
Trace small_tensors_of(Trace trace) {
  std::erase_if(trace.tensors,
                [](const TraceTensor& t) { return t.numel * sizeof(float) >= 64_KiB; });
  trace.name += "-small";
  return trace;
}

Trace in_bfloat16(Trace trace) {
  for (TraceTensor& tensor : trace.tensors) tensor.dtype = NORIA_BFLOAT16;
  return trace;
}

struct Model {
  const char* name;
  Trace (*make)();
};

constexpr std::array<Model, 15> kModels{{
    {"resnet18",
     [] {
       return resnet("resnet18", {2, 2, 2, 2}, false);
     }},
    {"resnet50",
     [] {
       return resnet("resnet50", {3, 4, 6, 3}, true);
     }},
    {"resnet50-small",
     [] {
       return small_tensors_of(resnet("resnet50", {3, 4, 6, 3}, true));
     }},
    {"resnet101",
     [] {
       return resnet("resnet101", {3, 4, 23, 3}, true);
     }},
    {"resnet152",
     [] {
       return resnet("resnet152", {3, 8, 36, 3}, true);
     }},
    {"vgg16", &vgg16},
    {"vit-b16", &vit_b16},
    {"bert-base", [] { return bert("bert-base", 12, 768, 3072); }},
    {"bert-large", [] { return bert("bert-large", 24, 1024, 4096); }},
    {"gpt2", [] { return gpt2("gpt2", 12, 768); }},
    {"gpt2-xl", [] { return gpt2("gpt2-xl", 48, 1600); }},
    {"llama-7b", [] { return llama("llama-7b", 32); }},
    // What a laptop holds of it, as it is trained.
    {"llama-7b-2-layers", [] { return in_bfloat16(llama("llama-7b-2-layers", 2)); }},
    {"dlrm", &dlrm},
    {"many-small", &many_small},
}};

}  // namespace

std::vector<std::string> trace_names() {
  std::vector<std::string> names;
  for (const Model& model : kModels) names.emplace_back(model.name);
  return names;
}

std::optional<Trace> make_trace(std::string_view name) {
  for (const Model& model : kModels)
    if (name == model.name) return model.make();
  return std::nullopt;
}

}  // namespace noria::perf
