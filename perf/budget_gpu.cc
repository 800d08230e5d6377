// What a gradient on a GPU, and a bucket of them, cost the host, without the driver and NCCL.
#include <noria/bucketing.h>

#include <string>
#include <vector>

#include "bucketing/cuda_stream.hpp"
#include "bucketing/device_memory.hpp"
#include "perf/budget_operations.hpp"
#include "perf/budget_ranks.hpp"
#include "perf/command_line.hpp"
#include "perf/cuda_lane.hpp"

namespace noria::perf {
namespace {

constexpr uint32_t kTensors = 200;  // of a bucket
constexpr uint32_t kBuckets = 4;    // more than are in flight, so that slots are used again
constexpr uint64_t kElements = 64;

enum class Measured { gradient, bucket };

// Copy mode, gradients where they were in the step before. A bucket's cost is that of the call that
// completes it: its own launch and the unpacking of the one that had its slot.
void run_on_gpu(Measured measured, uint64_t count) {
  const std::string library = params_of_environment().cuda;
  run_rank_pair(NORIA_STREAM_CUDA, [&](noria_comm* comm, int rank) {
    const auto device = need(bucketing::CudaDevice::create(library, rank));
    const auto stream = need(bucketing::CudaStream::create(*device));
    const auto memory = need(bucketing::DeviceMemory::allocate(
        *device, kElements * kBuckets * kTensors * sizeof(float)));
    const noria_stream producer{sizeof(noria_stream), NORIA_STREAM_CUDA, stream.handle(), rank};
    noria_reducer_config config = NORIA_REDUCER_CONFIG_INIT;
    config.device_kind = NORIA_STREAM_CUDA;
    config.bucket_bytes = config.first_bucket_bytes = kTensors * kElements * sizeof(float);
    noria_reducer* reducer = nullptr;
    require(noria_reducer_create(comm, &config, &reducer), "noria_reducer_create");
    for (uint32_t i = 0; i < kBuckets * kTensors; ++i) {
      const std::string name = "layer" + std::to_string(i);
      noria_tensor_desc tensor = NORIA_TENSOR_DESC_INIT;
      tensor.name = name.c_str();
      tensor.numel = kElements;
      uint32_t added = 0;
      require(noria_reducer_add(reducer, &tensor, &added), "noria_reducer_add");
    }
    require(noria_reducer_seal(reducer), "noria_reducer_seal");
    const uint64_t a_step = measured == Measured::bucket ? kBuckets : kBuckets * (kTensors - 1);
    for (uint64_t step = 0; step < 1 + count / a_step; ++step) {
      require(noria_step_begin(reducer, 0), "noria_step_begin");
      for (uint32_t i = kBuckets * kTensors; i-- > 0;) {
        noria_status status = NORIA_OK;
        auto* const gradient =
            reinterpret_cast<float*>(memory.pointer()) + static_cast<uint64_t>(i) * kElements;
        const auto ready = [&] { status = noria_grad_ready(reducer, i, gradient, &producer); };
        const bool completes = i % kTensors == 0;
        const bool is_counted = completes == (measured == Measured::bucket);
        rank == 0 && step > 0 && is_counted ? noria_measured(ready) : ready();
        require(status, "noria_grad_ready");
      }
      require(noria_step_end(reducer, &producer, nullptr), "noria_step_end");
    }
    noria_reducer_destroy(reducer);
  });
}

}  // namespace

std::vector<Operation> gpu_operations() {
  return {
      {.name = "grad_ready_gpu",
       .what = "noria_grad_ready with a CUDA stream, which completes no bucket",
       .count = 1592,
       .run = [](uint64_t n) { run_on_gpu(Measured::gradient, n); },
       .is_on_gpu = true},
      {.name = "gpu_bucket_200",
       .what = "the one that completes a bucket of 200 tensors: waits, packing, NCCL, unpacking",
       .count = 16,
       .run = [](uint64_t n) { run_on_gpu(Measured::bucket, n); },
       .is_on_gpu = true},
  };
}

}  // namespace noria::perf
