#include "bucketing/plan.hpp"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "base/fingerprint.hpp"
#include "bucketing/kernels.hpp"
#include "bucketing/plan_walk.hpp"

namespace noria::bucketing {
namespace {

// One dtype's open bucket, and how far it is through the list of caps.
struct Filling {
  Bucket bucket;
  uint32_t last_step = 0;  // of the walk, when the last tensor was added
  bool is_first = true;
};

std::vector<Bucket> walk_ddp(std::span<const PlanTensor> tensors,
                             std::span<const uint32_t> fill_order, const PlanCaps& caps) {
  std::vector<Bucket> buckets;
  std::array<Filling, kPlanDtypes> fillings;
  for (uint32_t step = 0; step < fill_order.size(); ++step) {
    const uint32_t index = fill_order[step];
    const PlanTensor& tensor = tensors[index];
    Filling& filling = fillings[static_cast<size_t>(tensor.dtype)];
    Bucket& bucket = filling.bucket;
    bucket.dtype = tensor.dtype;
    bucket.numel += tensor.numel;
    bucket.bytes += tensor.numel * dtype_bytes(tensor.dtype);
    bucket.tensors.push_back(index);
    filling.last_step = step;
    if (bucket.bytes >= (filling.is_first ? caps.first_bucket_bytes : caps.bucket_bytes)) {
      buckets.push_back(std::exchange(bucket, Bucket{}));
      filling.is_first = false;
    }
  }
  std::sort(fillings.begin(), fillings.end(),
            [](const Filling& a, const Filling& b) { return a.last_step < b.last_step; });
  for (Filling& filling : fillings)
    if (!filling.bucket.tensors.empty()) buckets.push_back(std::move(filling.bucket));
  return buckets;
}

}  // namespace

void lay_out(Plan& plan, std::span<const PlanTensor> tensors, uint64_t align) {
  plan.offsets.resize(tensors.size());
  std::array<std::vector<Bucket*>, kPlanDtypes> lines;
  for (Bucket& bucket : plan.buckets) lines[static_cast<size_t>(bucket.dtype)].push_back(&bucket);
  uint64_t offset = 0;
  for (const auto& line : lines) {
    offset = align_up(offset, kBucketAlign);
    uint64_t next = offset;  // where the next tensor begins
    uint32_t split = kNoTensor;
    for (Bucket* bucket : line) {
      bucket->arena_offset = offset = align_up(offset, align);
      offset += bucket->bytes;
      for (const uint32_t index : bucket->tensors) {
        if (index == split) continue;
        plan.offsets[index] = next = std::max(next, bucket->arena_offset);
        next += tensors[index].numel * dtype_bytes(tensors[index].dtype);
        if (next > offset) split = index;
      }
    }
  }
  plan.arena_bytes = align_up(offset, kBucketAlign);
}

uint64_t most_arena_bytes(std::span<const PlanTensor> tensors) {
  uint64_t bytes = kPlanDtypes * kBucketAlign;
  for (const PlanTensor& tensor : tensors)
    bytes += tensor.numel * dtype_bytes(tensor.dtype) + kBucketAlign;  // a gap follows each at most
  return bytes;
}

void launch_in_order(Plan& plan, std::span<const uint32_t> arrival) {
  std::vector<uint32_t> last(plan.buckets.size(), 0), order(plan.buckets.size());
  for (size_t b = 0; b < plan.buckets.size(); ++b)
    for (const uint32_t index : plan.buckets[b].tensors)
      last[b] = std::max(last[b], arrival[index]);
  std::iota(order.begin(), order.end(), 0U);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return last[a] < last[b]; });
  std::vector<Bucket> sorted;
  sorted.reserve(order.size());
  for (const uint32_t b : order) sorted.push_back(std::move(plan.buckets[b]));
  plan.buckets = std::move(sorted);
}

uint64_t fingerprint_of(const Plan& plan) {
  Fingerprint fingerprint;
  for (const Bucket& bucket : plan.buckets) {
    fingerprint.add(static_cast<uint64_t>(bucket.dtype));
    fingerprint.add(bucket.bytes);
    fingerprint.add(bucket.tensors.size());
    for (const uint32_t index : bucket.tensors) fingerprint.add(index);
  }
  return fingerprint.value();
}

ArenaRange overlap(const ArenaRange& a, const ArenaRange& b) {
  const uint64_t begin = std::max(a.begin, b.begin);
  return {.begin = begin, .end = std::max(begin, std::min(a.end, b.end))};
}

ArenaRange part_in_bucket(const Bucket& bucket, const ArenaRange& tensor) {
  return overlap(tensor, {bucket.arena_offset, bucket.arena_offset + bucket.bytes});
}

std::vector<uint32_t> reverse_registration(size_t tensors) {
  std::vector<uint32_t> order(tensors);
  std::iota(order.rbegin(), order.rend(), 0U);
  return order;
}

Plan plan_buckets(PlanKind kind, std::span<const PlanTensor> tensors,
                  std::span<const uint32_t> fill_order, const PlanCaps& caps) {
  Plan plan;
  plan.buckets = kind == PlanKind::strict ? walk_strict(tensors, fill_order, caps)
                                          : walk_ddp(tensors, fill_order, caps);
  lay_out(plan, tensors, kind == PlanKind::planned ? 1 : kBucketAlign);
  return plan;
}

}  // namespace noria::bucketing
