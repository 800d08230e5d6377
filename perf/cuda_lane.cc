#include "perf/cuda_lane.hpp"

#include <sched.h>

#include "base/clock.hpp"

namespace noria::perf {

using bucketing::CudaDevice;
using bucketing::CudaEvent;
using bucketing::CudaStream;
using bucketing::CudaSymbols;

CudaLane::CudaLane(const std::string& library, int ordinal)
    : device_(need(CudaDevice::create(library, ordinal))) {
  current_.emplace(need(device_->make_current()));
  stream_.emplace(need(CudaStream::create(*device_)));
  reached_.emplace(need(CudaEvent::create(*device_)));
}

std::unique_ptr<CudaLane> CudaLane::of_rank(const Params& params, int rank) {
  const auto* const api = need(bucketing::CudaApi::open(params.cuda));
  int count = 0;
  need(api->call<&CudaSymbols::device_get_count>(&count));
  if (count == 0) throw ToolError(Exit::environment, "this machine has no GPU that CUDA shows");
  return std::make_unique<CudaLane>(params.cuda, rank % count);
}

noria_stream CudaLane::stream() const {
  return {.struct_size = sizeof(noria_stream),
          .kind = NORIA_STREAM_CUDA,
          .handle = handle(),
          .device = device_->ordinal()};
}

void CudaLane::to_device(uint64_t to, const void* from, size_t bytes) {
  if (bytes == 0) return;
  need(device_->api().call<&CudaSymbols::copy_to_device>(bucketing::cuda::Pointer{to}, from, bytes,
                                                         handle()));
  wait();
}

void CudaLane::to_host(void* to, uint64_t from, size_t bytes) {
  if (bytes == 0) return;
  need(device_->api().call<&CudaSymbols::copy_to_host>(to, bucketing::cuda::Pointer{from}, bytes,
                                                       handle()));
  wait();
}

void CudaLane::wait() {
  constexpr Nanoseconds kPatience = 60_s;
  need(reached_->record(handle()));
  for (const Nanoseconds deadline = now_ns() + kPatience; !need(reached_->is_done());) {
    if (now_ns() >= deadline)
      throw ToolError(Exit::peer,
                      device_->name() + ": a stream's work did not end within a minute");
    ::sched_yield();  // a nap would be longer than what is timed
  }
}

CudaStopwatch::CudaStopwatch(CudaLane& lane)
    : lane_(lane),
      begin_(need(CudaEvent::create(lane.device(), CudaEvent::Timing::with))),
      end_(need(CudaEvent::create(lane.device(), CudaEvent::Timing::with))) {}

void CudaStopwatch::begin() { need(begin_.record(lane_.handle())); }
void CudaStopwatch::end() { need(end_.record(lane_.handle())); }

double CudaStopwatch::elapsed_us() {
  lane_.wait();
  return static_cast<double>(need(end_.elapsed_ms(begin_))) * 1e3;
}

}  // namespace noria::perf
