// StepGate: lets grad_ready() in while a step is open, and tells step_end() when the last caller is
// out.
//
// enter() and leave() are one atomic addition each. close() waits for callers that are inside: it
// ends when their copies do, as who waits inside for anybody looks at is_open() again and again.
//
// Threads: enter(), leave() and is_open() any thread; open() and close() one at a time.
#pragma once

#include <time.h>

#include <atomic>
#include <cstdint>

#include "base/check.hpp"

namespace noria::bucketing {

class StepGate {
 public:
  // False: closed, and the caller is not inside.
  NORIA_HOT bool enter() {
    // acquire: sees what was prepared before open(); pairs with release there.
    if ((word_.fetch_add(kCaller, std::memory_order_acquire) & kOpen) != 0) return true;
    word_.fetch_sub(kCaller, std::memory_order_relaxed);  // did nothing that anybody waits for
    return false;
  }
  // release: close() sees what was done inside.
  NORIA_HOT void leave() { word_.fetch_sub(kCaller, std::memory_order_release); }

  // relaxed: says only that close() waits.
  bool is_open() const { return (word_.load(std::memory_order_relaxed) & kOpen) != 0; }

  void open() { word_.fetch_or(kOpen, std::memory_order_release); }  // pairs with enter()

  void close() {
    word_.fetch_and(~kOpen, std::memory_order_relaxed);
    constexpr timespec kNap{.tv_sec = 0,
                            .tv_nsec = 20'000};  // a copy in grad_ready is about as long
    // acquire: pairs with release in leave(), and with every one of them as they are one chain.
    while (word_.load(std::memory_order_acquire) >= kCaller) nanosleep(&kNap, nullptr);
  }

 private:
  static constexpr uint32_t kOpen = 1;
  static constexpr uint32_t kCaller = 2;
  std::atomic<uint32_t> word_{0};  // kCaller for each caller inside, and kOpen
};

struct LeaveOnExit {
  StepGate& gate;
  ~LeaveOnExit() { gate.leave(); }
};

}  // namespace noria::bucketing
