#include "bucketing/readiness.hpp"

#include <algorithm>
#include <numeric>

#include "bucketing/kernels.hpp"

namespace noria::bucketing {
namespace {

std::vector<uint32_t> buckets_along_arena(const Plan& plan) {
  std::vector<uint32_t> order(plan.buckets.size());
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) {
    return plan.buckets[a].arena_offset < plan.buckets[b].arena_offset;
  });
  return order;
}

}  // namespace

Readiness::Readiness(const Plan& plan, std::span<const PlanTensor> tensors,
                     std::span<const Segment> segments)
    : tensors_(static_cast<uint32_t>(tensors.size())),
      homes_(tensors.size()),
      tensors_of_segment_(segments.size(), 0),
      expected_(tensors.size(), 1),
      left_(new std::atomic<int32_t>[tensors.size()]),
      closed_(new std::atomic<int32_t>[tensors.size()]),
      pending_(new std::atomic<uint32_t>[segments.size()]) {
  for (uint32_t id = 0; id < tensors.size(); ++id)
    homes_[id] = {.offset = plan.offsets[id],
                  .bytes = tensors[id].numel * dtype_bytes(tensors[id].dtype)};
  std::vector<uint32_t> first_segments(plan.buckets.size() + 1, 0);  // of each bucket
  uint32_t s = 0;
  for (uint32_t b = 0; b < plan.buckets.size(); ++b) {
    while (s < segments.size() && segments[s].part == b) ++s;
    first_segments[b + 1] = s;
  }
  stretches_.reserve(segments.size());
  for (const uint32_t b : buckets_along_arena(plan)) {
    add_bucket(plan.buckets[b], b, segments.subspan(0, first_segments[b + 1]), first_segments[b]);
  }
  for (; s < segments.size(); ++s) {
    tensors_of_segment_[s] = 1;
    stretches_.push_back({.end = 0, .segment = s, .bucket = segments[s].part});
  }
  restart();
}

// The next stretches: those of a bucket, whose segments are [first, segments.size()).
void Readiness::add_bucket(const Bucket& bucket, uint32_t index, std::span<const Segment> segments,
                           uint32_t first) {
  const uint32_t element = dtype_bytes(bucket.dtype);
  auto stretch = static_cast<uint32_t>(stretches_.size());
  for (uint32_t s = first; s < segments.size(); ++s)
    stretches_.push_back(
        {.end = bucket.arena_offset + (segments[s].first + segments[s].count) * element,
         .segment = s,
         .bucket = index});
  for (const uint32_t id : bucket.tensors) {
    Home& home = homes_[id];
    const ArenaRange part = part_in_bucket(bucket, home.range());
    if (part.bytes() == 0) continue;
    while (stretches_[stretch].end <= part.begin) ++stretch;
    if (home.stretches == 0) home.first_stretch = stretch;
    // The next tensor may begin in the segment in which this one ends: it stays the current one.
    while (true) {
      ++tensors_of_segment_[stretches_[stretch].segment];
      ++home.stretches;
      if (stretches_[stretch].end >= part.end) break;
      ++stretch;
    }
  }
}

void Readiness::restart() {
  // relaxed: published by whatever lets callers in, and by the submission of the step.
  for (size_t id = 0; id < homes_.size(); ++id) {
    left_[id].store(expected_[id], std::memory_order_relaxed);
    closed_[id].store(0, std::memory_order_relaxed);
  }
  for (size_t s = 0; s < tensors_of_segment_.size(); ++s)
    pending_[s].store(tensors_of_segment_[s], std::memory_order_relaxed);
}

}  // namespace noria::bucketing
