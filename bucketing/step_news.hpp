// StepNews: where a step's news lie in the arena, behind the buckets, and what each number says.
//
// The largest of all ranks counts: the verdict; 1 of a rank that is no shadow, or brought what it
// had accumulated; and, with the policy KEEP, for each tensor 1 if it was used.
//
// Threads: one at a time until the step has ended; then any thread may read.
#pragma once

#include <cstdint>

namespace noria::bucketing {

struct StepNews {
  static constexpr uint32_t kVerdict = 0, kLive = 1, kUsed = 2;

  int32_t* numbers = nullptr;
  uint32_t first_segment = 0;  // to the last; and stretches, as Readiness counts them

  // After the step, by any rank.
  bool is_used(uint32_t id) const { return numbers[kUsed + id] != 0; }
  // `tensors`: of which it is told whether they were used.
  static uint64_t count(uint64_t tensors) { return kUsed + tensors; }
};

}  // namespace noria::bucketing
