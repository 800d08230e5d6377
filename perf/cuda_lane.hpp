// One GPU and a stream of it, as a tool wants them: failures are thrown, and the host waits where
// it must know.
//
// The GPU's primary context is current on the thread that made the lane until it dies.
//
// Threads: the one that made it.
#pragma once

#include <noria/bucketing.h>

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/params.hpp"
#include "bucketing/cuda_event.hpp"
#include "bucketing/cuda_stream.hpp"
#include "bucketing/device_memory.hpp"
#include "perf/exit_codes.hpp"

namespace noria::perf {

template <class T>
T need(bucketing::Outcome<T> outcome) {
  if (!outcome) throw ToolError(exit_of(outcome.failure().code), outcome.failure().text);
  return std::move(*outcome);
}

class CudaLane {
 public:
  // `library` as NORIA_CUDA. Throws (environment) where there is no CUDA, and (usage) where no GPU
  // has that number.
  CudaLane(const std::string& library, int ordinal);
  // The GPU of a rank of a job: by its number on its host, round and round.
  static std::unique_ptr<CudaLane> of_rank(const Params& params, int rank);

  const bucketing::CudaDevice& device() const { return *device_; }
  bucketing::cuda::Stream handle() const { return stream_->handle(); }
  // As the C API takes it.
  noria_stream stream() const;

  bucketing::DeviceMemory memory(size_t bytes) const {
    return need(bucketing::DeviceMemory::allocate(*device_, bytes));
  }
  // Behind all that the stream was given; done when they return.
  void to_device(uint64_t to, const void* from, size_t bytes);
  void to_host(void* to, uint64_t from, size_t bytes);
  // Throws when the stream's work does not end within a minute.
  void wait();

 private:
  std::unique_ptr<bucketing::CudaDevice> device_;
  std::optional<bucketing::CudaDevice::Current> current_;
  std::optional<bucketing::CudaStream> stream_;
  std::optional<bucketing::CudaEvent> reached_;
};

// How long what a stream is given between begin() and end() takes on the device.
class CudaStopwatch {
 public:
  explicit CudaStopwatch(CudaLane& lane);
  void begin();
  void end();
  // Waits for it.
  double elapsed_us();

 private:
  CudaLane& lane_;
  bucketing::CudaEvent begin_, end_;
};

}  // namespace noria::perf
