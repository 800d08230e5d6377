// The planned plan: bucket edges chosen by when gradients became ready and by what the link costs.
//
// The model: buckets are sent in launch order, one after the other, each when its last tensor is
// ready and the one before has left, and each costs what the link's curve says. It is an upper
// bound of what the ring does, which sends a bucket while it fills. The earliest end of a step is
// found by dynamic programming over the edges of a dtype, the fewest buckets that still reach it by
// a walk backwards. DDP's plan is among the candidates, so that the result is never worse than it
// in the model.
//
// A bucket costs its bytes as they travel: half of float32's where `wire_dtype` has two.
//
// Edges lie between tensors. Of a dtype with more than kMostEdges tensors neighbours are taken
// together, so that time stays linear in tensors plus kMostEdges squared.
//
// Pure. Threads: any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/link_curve.hpp"
#include "bucketing/plan.hpp"

namespace noria::bucketing {

inline constexpr size_t kMostEdges = 1024;

// When the last bucket has arrived, in microseconds since the step began. `wire_dtype`: of what is
// float32 here; 0: as it is.
double modelled_end_us(const Plan& plan, std::span<const uint32_t> ready_us, const LinkCurve& curve,
                       noria_dtype wire_dtype = 0);

// `fill_order` gives the arena: tensors lie without gaps in it, whatever the edges.
Plan plan_by_times(std::span<const PlanTensor> tensors, std::span<const uint32_t> fill_order,
                   const PlanCaps& caps, std::span<const uint32_t> ready_us, const LinkCurve& curve,
                   noria_dtype wire_dtype = 0);

}  // namespace noria::bucketing
