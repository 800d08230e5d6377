// NetWarmup: how many messages pass before those that are measured.
//
// So many that every queue has gone round, 64; large ones need not, 1 GiB of them is enough; and on
// a slow link nobody waits for that: they go in rounds, each as long as all before it together, and
// none begins once kNetWarmupTime is over. So one message always passes, and the whole takes about
// twice that time where a message takes less.
//
// Threads: one.
#pragma once

#include <algorithm>
#include <cstdint>

#include "base/clock.hpp"
#include "base/units.hpp"

namespace noria::perf {

inline constexpr Nanoseconds kNetWarmupTime = 500'000'000;

class NetWarmup {
 public:
  NetWarmup(uint64_t bytes, Nanoseconds now)
      : most_(std::clamp<uint64_t>(1_GiB / bytes, 1, 64)), until_(now + kNetWarmupTime) {}

  // Messages that pass before the next look at the time.
  uint64_t goal() const { return goal_; }
  // They have passed. True: that was enough. False: goal() is further on.
  bool is_enough(Nanoseconds now) {
    if (goal_ == most_ || now >= until_) return true;
    goal_ = std::min(2 * goal_, most_);
    return false;
  }

 private:
  const uint64_t most_;
  const Nanoseconds until_;
  uint64_t goal_ = 1;
};

}  // namespace noria::perf
