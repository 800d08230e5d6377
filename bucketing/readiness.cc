#include "bucketing/readiness.hpp"

#include <algorithm>

#include "bucketing/kernels.hpp"

namespace noria::bucketing {

Readiness::Readiness(const Plan& plan, std::span<const PlanTensor> tensors,
                     std::span<const Segment> segments)
    : homes_(tensors.size()),
      segment_ends_(segments.size()),
      segment_buckets_(segments.size()),
      tensors_of_segment_(segments.size(), 0),
      given_(new std::atomic<Given>[tensors.size()]),
      pending_(new std::atomic<uint32_t>[segments.size()]) {
  uint32_t s = 0;  // both walks go through the buckets in the same order
  for (uint32_t b = 0; b < plan.buckets.size(); ++b) {
    const Bucket& bucket = plan.buckets[b];
    const uint32_t element = dtype_bytes(bucket.dtype);
    for (const uint32_t id : bucket.tensors) {
      const uint64_t first = plan.placements[id].first, end = first + tensors[id].numel;
      Home& home = homes_[id];
      home = {.offset = bucket.arena_offset + first * element,
              .bytes = tensors[id].numel * element,
              .first_segment = s};
      if (first == end) continue;
      while (segments[s].first + segments[s].count <= first) ++s;
      home.first_segment = s;
      // The next tensor may begin in the segment in which this one ends: s stays there.
      while (true) {
        ++tensors_of_segment_[s];
        ++home.segments;
        if (segments[s].first + segments[s].count >= end) break;
        ++s;
      }
    }
    for (; s < segments.size() && segments[s].part == b; ++s) {
    }
  }
  for (size_t i = 0; i < segments.size(); ++i) {
    segment_buckets_[i] = segments[i].part;
    if (segments[i].part >= plan.buckets.size()) {
      tensors_of_segment_[i] = 1;
      continue;
    }
    const Bucket& bucket = plan.buckets[segments[i].part];
    segment_ends_[i] =
        bucket.arena_offset + (segments[i].first + segments[i].count) * dtype_bytes(bucket.dtype);
  }
  restart();
}

void Readiness::restart() {
  // relaxed: published by whatever lets callers in, and by the submission of the step.
  for (size_t id = 0; id < homes_.size(); ++id)
    given_[id].store(Given::no, std::memory_order_relaxed);
  for (size_t s = 0; s < tensors_of_segment_.size(); ++s)
    pending_[s].store(tensors_of_segment_[s], std::memory_order_relaxed);
}

std::vector<uint32_t> Readiness::those(Given state) const {
  std::vector<uint32_t> ids;
  for (uint32_t id = 0; id < tensors(); ++id)
    if (given(id) == state) ids.push_back(id);
  return ids;
}

}  // namespace noria::bucketing
