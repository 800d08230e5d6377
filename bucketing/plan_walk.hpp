// What the planners share, for plan*.cc alone.
//
// Pure. Threads: any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "bucketing/plan.hpp"

namespace noria::bucketing {

inline constexpr size_t kPlanDtypes = NORIA_BFLOAT16 + 1;
inline constexpr uint32_t kNoTensor = UINT32_MAX;

// The strict plan's buckets in launch order, of one dtype in fill order; not laid out yet.
std::vector<Bucket> walk_strict(std::span<const PlanTensor> tensors,
                                std::span<const uint32_t> fill_order, const PlanCaps& caps);

// Gives buckets and tensors their places. Buckets of one dtype come in fill order; each begins at a
// multiple of `align`.
void lay_out(Plan& plan, std::span<const PlanTensor> tensors, uint64_t align);

}  // namespace noria::bucketing
