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
      : when_(rule.when), limit_(rule.limit), random_(seed) {
    next_ = when_ == SoftFault::When::about ? gap() : limit_;
  }

  // Whether the fault meets the request or call before which `passed` were counted. Each is asked
  // about once, in order.
  bool meets(uint64_t passed) {
    if (passed < next_) return false;
    if (when_ == SoftFault::When::after) {
      next_ = UINT64_MAX;
      return true;
    }
    if (when_ == SoftFault::When::every)
      next_ = (passed / limit_ + 1) * limit_;
    else
      while (next_ <= passed) next_ += gap();
    return true;
  }

 private:
  uint64_t gap() {
    // A well-mixed counter.
    random_ += 0x9e3779b97f4a7c15u;
    uint64_t x = (random_ ^ random_ >> 30) * 0xbf58476d1ce4e5b9u;
    x ^= x >> 27;
    return 1 + x % (2 * limit_ - 1);
  }

  SoftFault::When when_;
  uint64_t limit_;
  uint64_t random_;
  uint64_t next_ = 0;
};

}  // namespace noria::soft
