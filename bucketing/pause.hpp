// Pause: between two looks at something that nobody announces, as what a GPU or NCCL does.
//
// It is there in microseconds, or in milliseconds, or much later: so the looks come at once, then
// with the core left to others, then after a sleep of a quarter of the time that has passed, which
// is what they add to the wait at most, and never more than `longest`.
//
// Threads: one at a time.
#pragma once

#include <sched.h>
#include <time.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/relax.hpp"

namespace noria::bucketing {

class Pause {
 public:
  explicit Pause(Nanoseconds longest = 5_ms) : longest_(longest) {}

  void take() const {
    const Nanoseconds waited = now_ns() - since_;
    if (waited < 30_us) return relax();
    if (waited < 200_us) {
      ::sched_yield();
      return;
    }
    const timespec nap{.tv_sec = 0, .tv_nsec = std::min(waited / 4, longest_)};
    ::nanosleep(&nap, nullptr);
  }

 private:
  const Nanoseconds longest_;
  const Nanoseconds since_ = now_ns();
};

}  // namespace noria::bucketing
