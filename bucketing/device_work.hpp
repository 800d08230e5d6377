// DeviceWork: an operation on a GPU that the host may ask about, or wait for.
//
// That its event is there does not mean that the result is good: the abort of a communicator ends
// what is under way as well. So the communicator, which has failed before anything is aborted, is
// asked after the event. An answer that it is done stays.
//
// Costs: is_done() one question to the driver. wait() looks, then sleeps between looks for a
// quarter of the time it has waited, 5 ms at most.
//
// Threads: any thread.
#pragma once

#include <atomic>
#include <utility>

#include "base/clock.hpp"
#include "bucketing/cuda_event.hpp"
#include "bucketing/engine.hpp"
#include "bucketing/pause.hpp"

namespace noria::bucketing {

class DeviceWork {
 public:
  explicit DeviceWork(CudaEvent done) : done_(std::move(done)) {}

  CudaEvent& event() { return done_; }
  CudaEvent take_event() && { return std::move(done_); }

  Outcome<bool> is_done(const Engine& engine) {
    // relaxed: the bytes are the device's, whose event was asked.
    if (was_seen_.load(std::memory_order_relaxed)) return true;
    Outcome<bool> answer = done_.is_done();
    if (engine.failed()) return engine.failure();
    if (answer && *answer) was_seen_.store(true, std::memory_order_relaxed);
    return answer;
  }
  // Whether it is done before the deadline.
  Outcome<bool> wait(const Engine& engine, Nanoseconds deadline) {
    const Pause pause;
    while (true) {
      NORIA_TRY_ASSIGN(const bool is_done_now, is_done(engine));
      if (is_done_now) return true;
      if (now_ns() >= deadline) return false;
      pause.take();
    }
  }

 private:
  CudaEvent done_;
  std::atomic<bool> was_seen_{false};
};

}  // namespace noria::bucketing
