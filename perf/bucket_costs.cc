#include "perf/bucket_costs.hpp"

#include <algorithm>
#include <cmath>
#include <tuple>

#include "bucketing/plan_timed.hpp"

namespace noria::perf {
namespace {

using plugin::tuner::Collective;

constexpr uint64_t kCurveFrom = 4_MiB, kCurveTo = 64_MiB;

// Eight sizes of each power of two.
std::vector<uint64_t> sizes_between(uint64_t first, uint64_t last) {
  std::vector<uint64_t> sizes{first};
  for (double exact = static_cast<double>(first); sizes.back() < last;) {
    exact *= std::exp2(0.125);
    const auto size = std::min(static_cast<uint64_t>(exact), last);
    if (size > sizes.back()) sizes.push_back(size);
  }
  return sizes;
}

bool is_same(const Chosen& a, const Chosen& b) {
  return a.algorithm == b.algorithm && a.protocol == b.protocol;
}

TimedPlan timed(const TunedCluster& cluster, const ReadyTimes& times, bucketing::Plan plan) {
  std::vector<uint32_t> places(times.order.size());
  for (uint32_t i = 0; i < places.size(); ++i) places[times.order[i]] = i;
  bucketing::launch_in_order(plan, places);
  TimedPlan made;
  for (const bucketing::Bucket& bucket : plan.buckets) {
    TimedBucket one{.bytes = bucket.bytes, .tensors = bucket.tensors.size()};
    for (const uint32_t tensor : bucket.tensors)
      one.ready_ms = std::max(one.ready_ms, times.ready_ms[tensor]);
    one.chosen = all_reduce_of(cluster, std::max(bucket.bytes, uint64_t{1}));
    one.begin_ms = std::max(one.ready_ms, made.end_ms);
    one.end_ms = made.end_ms = one.begin_ms + one.chosen.us / 1e3;
    made.buckets.push_back(one);
  }
  return made;
}

}  // namespace

Chosen all_reduce_of(const TunedCluster& cluster, uint64_t bytes) {
  return cluster.explain(Collective::all_reduce, bytes).ours;
}

double bus_gbs_of(const TunedCluster& cluster, uint64_t bytes, double us) {
  return cluster.bus_gbs(Collective::all_reduce, bytes, us);
}

std::vector<Crossover> crossovers(const TunedCluster& cluster, uint64_t first, uint64_t last) {
  std::vector<Crossover> found{{first, all_reduce_of(cluster, first)}};
  uint64_t before = first;
  for (const uint64_t size : sizes_between(first, last)) {
    const Chosen chosen = all_reduce_of(cluster, size);
    if (!is_same(chosen, found.back().chosen)) {
      uint64_t low = before, high = size;  // old at low, new at high
      while (high - low > 1) {
        const uint64_t middle = low + (high - low) / 2;
        (is_same(all_reduce_of(cluster, middle), chosen) ? high : low) = middle;
      }
      found.push_back({high, all_reduce_of(cluster, high)});
    }
    before = size;
  }
  return found;
}

LinkCurve curve_of(const TunedCluster& cluster) {
  return fit_link_curve({kCurveFrom, all_reduce_of(cluster, kCurveFrom).us},
                        {kCurveTo, all_reduce_of(cluster, kCurveTo).us});
}

double most_off(const TunedCluster& cluster, const LinkCurve& curve, uint64_t first,
                uint64_t last) {
  double most = 0;
  for (const uint64_t size : sizes_between(first, last)) {
    const double us = all_reduce_of(cluster, size).us;
    most = std::max(most, std::abs(curve.us(size) - us) / us);
  }
  return most;
}

std::vector<TimedPlan> timed_plans(const TunedCluster& cluster, const Trace& trace,
                                   const ReadyTimes& times, const std::vector<uint64_t>& caps) {
  std::vector<bucketing::PlanTensor> tensors;
  for (const TraceTensor& tensor : trace.tensors) tensors.push_back({tensor.numel, tensor.dtype});
  const std::vector<uint32_t> order = bucketing::reverse_registration(tensors.size());
  std::vector<TimedPlan> plans;
  for (const uint64_t cap : caps) {
    bucketing::PlanCaps limits;
    limits.bucket_bytes = cap;
    limits.first_bucket_bytes = std::min(limits.first_bucket_bytes, cap);
    plans.push_back(
        timed(cluster, times, plan_buckets(bucketing::PlanKind::ddp, tensors, order, limits)));
    plans.back().name = "ddp";
    plans.back().cap_bytes = cap;
  }
  plans.push_back(
      timed(cluster, times,
            bucketing::plan_by_times(tensors, order, {}, ready_us(times), curve_of(cluster))));
  plans.back().name = "planned";
  std::stable_sort(plans.begin(), plans.end(), [](const TimedPlan& a, const TimedPlan& b) {
    return std::make_tuple(a.end_ms, a.buckets.size()) <
           std::make_tuple(b.end_ms, b.buckets.size());
  });
  return plans;
}

}  // namespace noria::perf
