// Each call of CUDA's driver and of NCCL that a job makes fails once, of each function in the .def
// files: whatever it is, ranks go on or are told in words, nobody waits for a time-out, and nothing
// is left behind.
#include <gtest/gtest.h>

#include <barrier>
#include <set>

#include "tests/support/cuda_standin/nccl.hpp"
#include "tests/support/device_rank.hpp"

namespace noria::test {
namespace {

constexpr int kIllegalAddress = 700;
constexpr uint64_t kNever = uint64_t{1} << 40U;

struct Function {
  const char* name;
  int code;  // that it fails with
};

const std::vector<Function> kDriver = {
#define NORIA_CUDA(member, function, ...) {#function, kIllegalAddress},
#include "bucketing/cuda_symbols.def"
#undef NORIA_CUDA
};
const std::vector<Function> kNccl = {
#define NORIA_NCCL(member, function, ...) {#function, standin::kNcclInternalError},
#include "bucketing/nccl_symbols.def"
#undef NORIA_NCCL
};

// What such a call would have given back stays; so does memory that NCCL did not forget.
bool gives_back(const std::string& function) {
  return std::set<std::string>{"cuStreamDestroy_v2", "cuEventDestroy_v2", "cuMemFree_v2",
                               "ncclCommDeregister"}
             .count(function) != 0;
}

// One rank's part of a job, which ends with the first call that fails.
class Rank {
 public:
  Rank(const noria_unique_id& id, int32_t rank, bool arena)
      : model_(small_model()), rank_(rank), arena_(arena), on_(rank), id_(id) {
    producer_ = on_.stream();
    consumer_ = on_.stream();
    for (const Tensor& tensor : model_) memory_.push_back(on_.memory<float>(tensor.numel));
  }
  void run() {
    static_cast<void>(make() && step(consumer_) && reduce() && step(nullptr));
    noria_reducer_destroy(reducer_);
    noria_comm_destroy(comm_);
  }

 private:
  static bool good(noria_status status) {
    if (status == NORIA_OK) return true;
    EXPECT_NE(status, NORIA_E_TIMEOUT) << last_error();
    EXPECT_NE(last_error(), "");
    return false;
  }
  bool make() {
    noria_comm_config config = gpu_config(id_, rank_, 2);
    config.start_timeout_ms = config.collective_timeout_ms = 10'000;
    if (!good(noria_comm_create(&config, &comm_))) return false;
    const noria_reducer_config reducer = device_config(arena_);
    if (!good(noria_reducer_create(comm_, &reducer, &reducer_))) return false;
    for (const Tensor& of_model : model_) {
      noria_tensor_desc tensor = NORIA_TENSOR_DESC_INIT;
      tensor.name = of_model.name.c_str();
      tensor.numel = of_model.numel;
      uint32_t id = 0;
      if (!good(noria_reducer_add(reducer_, &tensor, &id))) return false;
    }
    return good(noria_reducer_seal(reducer_));
  }
  noria_stream stream(void* handle) const {
    return {sizeof(noria_stream), NORIA_STREAM_CUDA, handle, rank_};
  }
  bool step(void* consumer) {
    if (!good(noria_step_begin(reducer_, 0))) return false;
    on_.order(consumer_, producer_);  // gradients come behind whatever used the last ones
    const noria_stream from = stream(producer_), to = stream(consumer);
    for (uint32_t id = 0; id < model_.size(); ++id) {
      void* const grad = arena_ ? nullptr : reinterpret_cast<void*>(memory_[id]);
      if (!good(noria_grad_ready(reducer_, id, grad, &from))) return false;
    }
    return good(noria_step_end(reducer_, consumer == nullptr ? nullptr : &to, nullptr));
  }
  bool reduce() {
    const noria_stream to = stream(consumer_);
    void* const at = reinterpret_cast<void*>(memory_[kA]);
    void* const apart = reinterpret_cast<void*>(memory_[kB]);
    noria_work* work = nullptr;
    if (!good(noria_all_reduce(comm_, at, at, 8, NORIA_FLOAT32, NORIA_SUM, &to, &work)))
      return false;
    const bool is_over = good(noria_work_wait(work, 0));
    noria_work_release(work);
    return is_over &&
           good(noria_reduce_scatter(comm_, at, apart, 4, NORIA_FLOAT32, NORIA_SUM, &to, nullptr));
  }

  const std::vector<Tensor> model_;
  const int32_t rank_;
  const bool arena_;
  standin::OnDevice on_;
  const noria_unique_id& id_;
  void *producer_ = nullptr, *consumer_ = nullptr;
  std::vector<uint64_t> memory_;
  noria_comm* comm_ = nullptr;
  noria_reducer* reducer_ = nullptr;
};

// How often the job calls the function, whose nth call fails; 0: none.
uint64_t run_job(const Function& function, uint64_t nth, bool arena) {
  standin::reset(nth);
  const size_t objects = standin::objects_alive();
  const noria_unique_id id = make_job_id();
  uint64_t before = 0, calls = 0;
  std::barrier ready(2, [&]() noexcept {
    before = standin::calls(function.name);
    if (nth != 0) standin::fail_call(function.name, nth, function.code);
  });
  std::barrier over(2, [&]() noexcept {
    calls = standin::calls(function.name) - before;
    standin::fail_call(function.name, kNever, function.code);
  });
  run_rank_threads(2, [&](int32_t rank) {
    Rank mine(id, rank, arena);
    ready.arrive_and_wait();
    mine.run();
    over.arrive_and_wait();
  });
  EXPECT_EQ(standin::violations(), std::vector<std::string>());
  if (!gives_back(function.name)) {
    EXPECT_EQ(standin::objects_alive(), objects);
  }
  return calls;
}

void expect_words(const std::vector<Function>& functions) {
  for (const Function& function : functions)
    for (const bool arena : {true, false}) {
      const uint64_t all = run_job(function, 0, arena);
      // The first ones, each of which is another place; then fewer and fewer.
      for (uint64_t nth = arena ? 1 : 2; nth <= all; nth = 4 * nth + (arena ? 0 : 1)) {
        SCOPED_TRACE(std::string(function.name) + " " + std::to_string(nth) + " of " +
                     std::to_string(all) + (arena ? " with views" : " with copies"));
        run_job(function, nth, arena);
      }
    }
}

TEST(DeviceSweep, Whatever_call_of_the_driver_fails_is_told_in_words_and_leaves_nothing) {
  expect_words(kDriver);
}

TEST(DeviceSweep, Whatever_call_of_NCCL_fails_is_told_in_words_and_leaves_nothing) {
  expect_words(kNccl);
}

}  // namespace
}  // namespace noria::test
