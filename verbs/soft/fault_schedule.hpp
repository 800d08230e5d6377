// When a rule of NORIA_SOFT_FAULTS meets what it counts. Counts only, no time: the same rule and
// seed meet the same requests in every run.
//
// Threads: one at a time.
#pragma once

#include <cstdint>

#include "base/soft_faults.hpp"

namespace noria::soft {

class FaultSchedule {
 public:
  FaultSchedule(const SoftFault& rule, uint64_t seed)
      : when_(rule.when), limit_(rule.limit), seed_(seed) {
    next_ = when_ == SoftFault::When::about ? drawn(0) : limit_;
  }

  // Whether the fault meets the request or call before which `passed` were counted. Each is asked
  // about once, in order.
  bool meets(uint64_t passed) {
    if (passed < next_) return false;
    if (when_ == SoftFault::When::after) {
      next_ = UINT64_MAX;
      return true;
    }
    // Computed, for a long message may pass a billion of them.
    const uint64_t window = passed / limit_;
    if (when_ == SoftFault::When::every)
      next_ = (window + 1) * limit_;
    else
      next_ = drawn(window) > passed ? drawn(window) : drawn(window + 1);
    return true;
  }

 private:
  // One in each window of N, anywhere in it: so a gap is 1 to 2N - 1.
  uint64_t drawn(uint64_t window) const {
    // A well-mixed counter.
    const uint64_t counter = seed_ + (window + 1) * 0x9e3779b97f4a7c15u;
    uint64_t x = (counter ^ counter >> 30) * 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    return window * limit_ + 1 + x % limit_;
  }

  SoftFault::When when_;
  uint64_t limit_;
  uint64_t seed_;
  uint64_t next_ = 0;
};

}  // namespace noria::soft
