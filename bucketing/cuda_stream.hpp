// CudaStream: a stream of our own; CallerStreams: what noria_stream structs name.
//
// Ours do not wait for the legacy default stream, nor it for them, and their work goes before that
// of streams of lower priority, which is where computations run.
//
// A caller's stream must belong to the device's primary context, as those of frameworks do; that is
// asked of the driver once for each handle. CUDA's two default streams are the calling thread's, so
// that who is given one must record its events in the same call, on the same thread.
//
// Costs: check() of a stream that was seen before: some loads. Of a default stream: one call of the
// driver.
//
// Threads: CudaStream one at a time; CallerStreams any thread.
#pragma once

#include <noria/bucketing.h>

#include <array>
#include <atomic>
#include <optional>
#include <string>
#include <utility>

#include "bucketing/cuda_device.hpp"

namespace noria::bucketing {

class CudaStream {
 public:
  static Outcome<CudaStream> create(const CudaDevice& device) {
    NORIA_TRY_ASSIGN(const CudaDevice::Current current, device.make_current());
    int least = 0, greatest = 0;
    NORIA_TRY(device.api().call<&CudaSymbols::context_get_priority_range>(&least, &greatest));
    cuda::Stream stream = nullptr;
    NORIA_TRY(device.api().call<&CudaSymbols::stream_create>(&stream, cuda::kStreamNonBlocking,
                                                             greatest));
    return CudaStream(device, stream);
  }
  // Its work goes on to its end.
  ~CudaStream() {
    if (stream_ == nullptr) return;
    // What goes wrong here went wrong before, and was told then.
    const auto current = device_->make_current();
    static_cast<void>(device_->api().call<&CudaSymbols::stream_destroy>(stream_));
  }
  CudaStream(CudaStream&& other) noexcept
      : device_(other.device_), stream_(std::exchange(other.stream_, nullptr)) {}
  CudaStream& operator=(CudaStream&&) = delete;

  cuda::Stream handle() const { return stream_; }

 private:
  CudaStream(const CudaDevice& device, cuda::Stream stream) : device_(&device), stream_(stream) {}

  const CudaDevice* device_;
  cuda::Stream stream_;
};

// For people: "CUDA's legacy default stream", "stream 0x55d0c0ffee10".
std::string stream_name(cuda::Stream stream);

class CallerStreams {
 public:
  explicit CallerStreams(const CudaDevice& device) : device_(&device) {}

  // The stream that `stream`, of kind CUDA, names; ARG where it cannot be used with the device.
  NORIA_HOT Outcome<cuda::Stream> check(const noria_stream& stream) {
    const auto handle = static_cast<cuda::Stream>(stream.handle);
    if (stream.device == device_->ordinal() && !is_default(handle))
      for (const auto& seen : seen_)
        // relaxed: a handle alone; it was checked before it came here.
        if (seen.load(std::memory_order_relaxed) == handle) return handle;
    return look_at(stream);
  }

  // Of the calling thread: its meaning depends on who asks.
  static bool is_default(cuda::Stream handle) {
    return reinterpret_cast<uintptr_t>(handle) <=
           reinterpret_cast<uintptr_t>(cuda::per_thread_stream());
  }

 private:
  NORIA_COLD Outcome<cuda::Stream> look_at(const noria_stream& stream);
  Outcome<cuda::Context> context_of(cuda::Stream handle) const;

  const CudaDevice* device_;
  std::array<std::atomic<cuda::Stream>, 16> seen_{};
  std::atomic<uint32_t> next_{0};
};

// What a call's noria_stream names: nothing is the host. `streams` null: it is the host's
// communicator or reducer, which takes no other.
Outcome<std::optional<cuda::Stream>> read_stream(const noria_stream* stream,
                                                 CallerStreams* streams);

}  // namespace noria::bucketing
