// Verdict: how a step ended, as each rank must learn it in that very step.
//
// Every rank gives one number, 0 for no complaint, and the step's last part reduces them with MAX:
// the gravest complaint wins on all ranks alike. Only if it is not 0 do the ranks exchange the
// texts, of which each composes the same failure.
//
// Pure. Threads: any thread.
#pragma once

#include <noria/bucketing.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "bucketing/failure.hpp"
#include "bucketing/tensor_table.hpp"

namespace noria::bucketing {

// A hook of the user's answered with a code that is not 0.
struct HookComplaint {
  noria_hook_moment moment = NORIA_HOOK_BEFORE;
  uint32_t bucket = 0;
  int32_t code = 0;
  std::string text;
};
const char* hook_moment_text(noria_hook_moment moment);  // "before it was sent"

// What one rank found wrong with its own step.
struct Complaints {
  std::vector<uint32_t> missing;    // ids; of those that never came
  std::vector<uint32_t> partly;     // came, but less often than is expected of them
  std::vector<uint32_t> late;       // came again after they were given or declared unused
  std::vector<uint32_t> nonfinite;  // brought values that are not finite, in the first such bucket
  uint32_t nonfinite_bucket = 0;
  // Whose sums are not finite in this rank's shard of the first such bucket, though gradients are.
  std::vector<uint32_t> overflowed;
  uint32_t overflowed_bucket = 0;
  std::optional<HookComplaint> hook;
  bool was_reset = false;  // left half-way; then nothing is missing

  bool is_any() const {
    return was_reset || !missing.empty() || !partly.empty() || !late.empty() ||
           !nonfinite.empty() || !overflowed.empty() || hook;
  }
};

// 0, or a number for what the complaints stand for: ABORTED before MISSING before DUP_READY before
// HOOK before NONFINITE.
int32_t verdict_of(const Complaints& complaints);
noria_status code_of(int32_t verdict);

// "'a', 'b' (2 of 161 tensors)"; long lists and names are cut.
std::string names_of(const std::vector<uint32_t>& ids, const TensorTable& tensors);

// "did not give 'a', 'b' (2 of 161 tensors)"; empty without complaints. At most about 1 KiB.
std::string describe(const Complaints& complaints, const TensorTable& tensors);

// What a rank tells the others: its verdict and its description; empty without complaints.
std::string told_of(const Complaints& complaints, const TensorTable& tensors);
// Of what the ranks told, the gravest verdict.
int32_t gravest_of(const std::vector<std::string>& told);
// The failure that all ranks return; `told` in rank order.
Failure compose_failure(int32_t verdict, uint64_t step, const std::vector<std::string>& told);

}  // namespace noria::bucketing
