// GradientRecords: what a reducer keeps of each tensor from step to step, whatever the plan; by id.
//
// Threads: the atomics whoever gives the tensor or asks for its result; the rest whoever begins or
// ends a step.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

namespace noria::bucketing {

struct GradientRecords {
  std::vector<int32_t> expected_fires;   // as they were given or learned
  std::vector<uint64_t> views;           // arena mode: of each in the arena; never changes
  std::vector<uint64_t> result_offsets;  // in the arena, by the plan of the last step
  // Copy mode: where the gradient came from, and its result goes.
  std::unique_ptr<std::atomic<std::byte*>[]> sources;
  std::unique_ptr<std::atomic<bool>[]> is_delivered;  // copy mode: by result(), before step_end()
  std::vector<std::vector<std::byte>> unclaimed;      // slots: results of what was not given here
  std::unique_ptr<std::atomic<bool>[]> is_nonfinite;  // where that is looked for
  std::vector<std::vector<std::byte>> kept;           // arena and KEEP: what stood in unused views
};

}  // namespace noria::bucketing
