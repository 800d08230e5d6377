// What buckets cost on a cluster, where the best choice changes, and when a step ends by a plan.
//
// A bucket's cost is that of an all-reduce of its bytes as TunedCluster has it: by the tables where
// they predict, else by NCCL's model. Cutting is the planner's (bucketing/plan.hpp).
//
// Threads: any thread; pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/link_curve.hpp"
#include "bucketing/plan.hpp"
#include "perf/ready_times.hpp"
#include "perf/tuned_cluster.hpp"

namespace noria::perf {

Chosen all_reduce_of(const TunedCluster& cluster, uint64_t bytes);
// GB/s on the bus, as nccl-tests counts them.
double bus_gbs_of(const TunedCluster& cluster, uint64_t bytes, double us);

// From `bytes` on, up to the next one's, this is what is chosen.
struct Crossover {
  uint64_t bytes = 0;
  Chosen chosen;
};
// Ascending. What is chosen for less than an eighth of a power of two may be missed.
std::vector<Crossover> crossovers(const TunedCluster& cluster, uint64_t first, uint64_t last);

// The line that the planner takes for the cost of buckets: through 4 MiB and 64 MiB.
LinkCurve curve_of(const TunedCluster& cluster);
// How far it is off, at most, between the sizes: 0.1 is a tenth of the cost.
double most_off(const TunedCluster& cluster, const LinkCurve& curve, uint64_t first, uint64_t last);

struct TimedBucket {
  uint64_t bytes = 0;
  size_t tensors = 0;
  double ready_ms = 0, begin_ms = 0, end_ms = 0;
  Chosen chosen;
};
struct TimedPlan {
  std::string name;
  uint64_t cap_bytes = 0;  // 0: it has none
  std::vector<TimedBucket> buckets;
  double end_ms = 0;
};

// As DDP cuts with each cap, and as the planner does by the curve; the one that ends first, of
// several the one with the fewest buckets, stands first.
std::vector<TimedPlan> timed_plans(const TunedCluster& cluster, const Trace& trace,
                                   const ReadyTimes& times, const std::vector<uint64_t>& caps);

}  // namespace noria::perf
