// CudaEvent: a point in a stream's work, for which other streams and the host can wait.
//
// An event may be recorded again: a stream that was held back waits for what it stood for then.
// Making one takes the driver's time, so that an owner makes those it needs before the first step,
// or takes them from an EventPool and gives them back.
//
// Costs: each is one call of the driver; record() and hold_back() do not wait.
//
// Threads: one at a time, but for is_done() (any thread). EventPool: one at a time.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "bucketing/cuda_device.hpp"

namespace noria::bucketing {

class CudaEvent {
 public:
  // Those with timing are for elapsed_ms().
  enum class Timing : bool { without, with };

  static Outcome<CudaEvent> create(const CudaDevice& device, Timing timing = Timing::without) {
    NORIA_TRY_ASSIGN(const CudaDevice::Current current, device.make_current());
    cuda::Event event = nullptr;
    NORIA_TRY(device.api().call<&CudaSymbols::event_create>(
        &event, timing == Timing::with ? 0 : cuda::kEventWithoutTiming));
    return CudaEvent(device, event);
  }
  ~CudaEvent() {
    if (event_ == nullptr) return;
    // What goes wrong here went wrong before, and was told then.
    const auto current = device_->make_current();
    static_cast<void>(device_->api().call<&CudaSymbols::event_destroy>(event_));
  }
  CudaEvent(CudaEvent&& other) noexcept
      : device_(other.device_), event_(std::exchange(other.event_, nullptr)) {}
  CudaEvent& operator=(CudaEvent&&) = delete;

  // From now on it stands for all that `stream` was given so far. The device is current.
  NORIA_HOT Outcome<Ok> record(cuda::Stream stream) {
    return device_->api().call<&CudaSymbols::event_record>(event_, stream);
  }
  // What `stream` is given from now on waits for it; at once where it was never recorded. The
  // device is current.
  NORIA_HOT Outcome<Ok> hold_back(cuda::Stream stream) const {
    return device_->api().call<&CudaSymbols::stream_wait_event>(stream, event_, 0U);
  }
  // Whether all that it stands for is done; true where it was never recorded.
  Outcome<bool> is_done() const {
    NORIA_TRY_ASSIGN(const CudaDevice::Current current, device_->make_current());
    return device_->api().ask<&CudaSymbols::event_query>(event_);
  }
  // A negative number where one of the two is not done.
  Outcome<float> elapsed_ms(const CudaEvent& since) const {
    NORIA_TRY_ASSIGN(const CudaDevice::Current current, device_->make_current());
    float elapsed = 0;
    NORIA_TRY_ASSIGN(const bool are_done, device_->api().ask<&CudaSymbols::event_elapsed_time>(
                                              &elapsed, since.event_, event_));
    return are_done ? elapsed : -1.0F;
  }

 private:
  CudaEvent(const CudaDevice& device, cuda::Event event) : device_(&device), event_(event) {}

  const CudaDevice* device_;
  cuda::Event event_;
};

// Events that are used for a while, and again by others.
class EventPool {
 public:
  explicit EventPool(const CudaDevice& device) : device_(&device) {}

  Outcome<CudaEvent> take() {
    if (free_.empty()) return CudaEvent::create(*device_);
    CudaEvent event = std::move(free_.back());
    free_.pop_back();
    return event;
  }
  void give_back(CudaEvent event) { free_.push_back(std::move(event)); }

 private:
  const CudaDevice* device_;
  std::vector<CudaEvent> free_;
};

}  // namespace noria::bucketing
