// StepProgress: how far a step's end has come on this rank.
//
// Threads: is_finishing and finished any thread; is_waited_for is the engine's to read; the rest
// whoever ends the step, or is finishing.
#pragma once

#include <atomic>
#include <cstdint>
#include <optional>

namespace noria::bucketing {

struct StepProgress {
  std::atomic<uint32_t> finished{0};       // buckets that were seen to, from the first on
  std::atomic<bool> is_finishing{false};   // somebody sees to one, before the step's end
  std::atomic<bool> is_waited_for{false};  // as Collective has it: nothing is left but to wait
  bool is_good = true;                     // this rank has no complaint
  std::optional<uint32_t> overflowed;      // the bucket's sums are not finite; where that is asked

  void restart() {
    // relaxed: published by whatever lets callers in, and by the submission of the step.
    finished.store(0, std::memory_order_relaxed);
    is_waited_for.store(false, std::memory_order_relaxed);
    is_good = true;
    overflowed.reset();
  }
};

}  // namespace noria::bucketing
