// StepGate: lets grad_ready() in while a step is open, and tells step_end() when the last caller is
// out.
//
// enter() and leave() are one atomic addition each. close() waits for callers that are inside: it
// ends when their copies do, as who waits inside for anybody looks at is_open() again and again.
//
// A step whose gradients need more than the usual path has is opened for enter_any() alone: what
// enter() refuses then is asked once more, so that the usual path carries no question for it.
//
// Threads: enter(), enter_any(), leave() and is_open() any thread; open(), open_unusual() and
// close() one at a time.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>

#include "base/check.hpp"

namespace noria::bucketing {

class StepGate {
 public:
  // False: closed, or open for enter_any() alone, and the caller is not inside.
  NORIA_HOT bool enter() { return enter_by(kUsual); }
  NORIA_HOT bool enter_any() { return enter_by(kOpen); }
  // release: close() sees what was done inside.
  NORIA_HOT void leave() { word_.fetch_sub(kCaller, std::memory_order_release); }

  // relaxed: says only that close() waits.
  bool is_open() const { return (word_.load(std::memory_order_relaxed) & kOpen) != 0; }

  // release: pairs with enter_by().
  void open() { word_.fetch_or(kOpen | kUsual, std::memory_order_release); }
  void open_unusual() { word_.fetch_or(kOpen, std::memory_order_release); }

  void close() {
    word_.fetch_and(~(kOpen | kUsual), std::memory_order_relaxed);
    constexpr timespec kNap{.tv_sec = 0,
                            .tv_nsec = 20'000};  // a copy in grad_ready is about as long
    // acquire: pairs with release in leave(), and with every one of them as they are one chain.
    while (word_.load(std::memory_order_acquire) >= kCaller) nanosleep(&kNap, nullptr);
  }

 private:
  static constexpr uint32_t kOpen = 1;
  static constexpr uint32_t kUsual = 2;
  static constexpr uint32_t kCaller = 4;

  NORIA_HOT bool enter_by(uint32_t bit) {
    // acquire: sees what was prepared before the opening; pairs with release there.
    if ((word_.fetch_add(kCaller, std::memory_order_acquire) & bit) != 0) return true;
    word_.fetch_sub(kCaller, std::memory_order_relaxed);  // did nothing that anybody waits for
    return false;
  }

  std::atomic<uint32_t> word_{0};  // kCaller for each caller inside, and the bits
};

struct LeaveOnExit {
  StepGate& gate;
  ~LeaveOnExit() { gate.leave(); }
};

}  // namespace noria::bucketing
