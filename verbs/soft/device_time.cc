#include "verbs/soft/device_time.hpp"

#include <algorithm>
#include <atomic>

namespace noria::soft {
namespace {

constexpr Nanoseconds kRuns = -1;
// relaxed throughout: where it stands there is one thread.
std::atomic<Nanoseconds> the_time{kRuns};

}  // namespace

Nanoseconds device_now() {
  const Nanoseconds standing = the_time.load(std::memory_order_relaxed);
  return standing == kRuns ? now_ns() : standing;
}

void stand_at(Nanoseconds now) {
  the_time.store(std::max(now, the_time.load(std::memory_order_relaxed)),
                 std::memory_order_relaxed);
}

bool is_time_standing() { return the_time.load(std::memory_order_relaxed) != kRuns; }

}  // namespace noria::soft
