// When a device is done with memory that is to be given back.
//
// is_seen_within: looks until the answer is true, fails, or patience is over.
// is_still_at_work: what a destructor asks. An operation that NCCL gave up ends in milliseconds; a
// device that is lost takes its work with it.
//
// Threads: one at a time. Blocks: as long as it says.
#pragma once

#include "base/clock.hpp"
#include "bucketing/failure.hpp"
#include "bucketing/pause.hpp"

namespace noria::bucketing {

// `ask` is an Outcome<bool>(). False: not within `patience`.
template <class Ask>
Outcome<bool> is_seen_within(Nanoseconds patience, Ask ask) {
  const Pause pause;
  for (const Nanoseconds deadline = now_ns() + patience;;) {
    NORIA_TRY_ASSIGN(const bool is_seen, ask());
    if (is_seen || now_ns() >= deadline) return is_seen;
    pause.take();
  }
}

// `is_idle_within` is an Outcome<bool>(Nanoseconds).
template <class IsIdleWithin>
bool is_still_at_work(IsIdleWithin is_idle_within) {
  constexpr Nanoseconds kPatience = 10_s;
  Outcome<bool> is_idle = is_idle_within(kPatience);
  if (!is_idle) is_idle = is_idle_within(kPatience);  // the failure was of something before
  return is_idle && !*is_idle;
}

}  // namespace noria::bucketing
