// Plans as text, to be read by people and by a later run, which then needs no step to learn from.
//
//   noria_plan 1 packed                  version; packed: tensors lie without gaps between buckets,
//                                        lines: buckets begin at multiples of kBucketAlign
//   tensor 1 float32 1000 fc.bias        index of registration, dtype, elements, name; as filled
//   tensor 0 float32 2048000 fc.weight
//   bucket float32 0 1000                first and count, in elements of its dtype's tensors; in
//   bucket float32 1000 2048000          launch order
//
// Empty lines, and lines that begin with #, mean nothing. What is wrong is told as
// "file:line:column: what". What is accepted has each index once, and buckets that cover each dtype
// without a gap.
//
// Pure. Threads: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "bucketing/failure.hpp"
#include "bucketing/plan.hpp"
#include "bucketing/tensor_table.hpp"

namespace noria::bucketing {

struct SavedPlan {
  struct OfTensor {
    uint32_t id = 0;
    noria_dtype dtype = NORIA_FLOAT32;
    uint64_t numel = 0;
    std::string name;  // printable
  };
  struct OfBucket {
    noria_dtype dtype = NORIA_FLOAT32;
    uint64_t first = 0, numel = 0;

    uint64_t end() const { return first + numel; }
  };

  bool is_packed = false;
  std::vector<OfTensor> tensors;  // in fill order
  std::vector<OfBucket> buckets;  // in launch order
};

Outcome<SavedPlan> parse_plan(std::string_view text, const std::string& file);
std::string text_of(const SavedPlan& saved);
uint64_t fingerprint_of(const SavedPlan& saved);  // of its text; not 0

// `is_packed` as the plan was laid out.
SavedPlan saved_of(const Plan& plan, const TensorTable& tensors, bool is_packed);
// ARG, naming the first difference, if the plan is not of these tensors.
Outcome<Plan> plan_of(const SavedPlan& saved, const TensorTable& tensors);

}  // namespace noria::bucketing
