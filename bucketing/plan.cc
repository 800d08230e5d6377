#include "bucketing/plan.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "bucketing/kernels.hpp"

namespace noria::bucketing {
namespace {

// One dtype's open bucket, and how far it is through the list of caps.
struct Filling {
  Bucket bucket;
  uint32_t last_step = 0;  // of the walk, when the last tensor was added
  bool is_first = true;
};

constexpr size_t kDtypes = NORIA_BFLOAT16 + 1;

void lay_out(Plan& plan, std::span<const PlanTensor> tensors) {
  plan.placements.resize(tensors.size());
  uint64_t offset = 0;
  for (uint32_t b = 0; b < plan.buckets.size(); ++b) {
    Bucket& bucket = plan.buckets[b];
    bucket.arena_offset = offset;
    uint64_t first = 0;
    for (const uint32_t index : bucket.tensors) {
      plan.placements[index] = {.bucket = b, .first = first};
      first += tensors[index].numel;
    }
    offset = align_up(offset + bucket.bytes, kBucketAlign);
  }
  plan.arena_bytes = offset;
}

}  // namespace

Plan plan_buckets(std::span<const PlanTensor> tensors, const PlanCaps& caps) {
  Plan plan;
  std::array<Filling, kDtypes> fillings;
  for (uint32_t step = 0; step < tensors.size(); ++step) {
    const auto index = static_cast<uint32_t>(tensors.size() - 1 - step);
    const PlanTensor& tensor = tensors[index];
    Filling& filling = fillings[static_cast<size_t>(tensor.dtype)];
    Bucket& bucket = filling.bucket;
    bucket.dtype = tensor.dtype;
    bucket.numel += tensor.numel;
    bucket.bytes += tensor.numel * dtype_bytes(tensor.dtype);
    bucket.tensors.push_back(index);
    filling.last_step = step;
    if (bucket.bytes >= (filling.is_first ? caps.first_bucket_bytes : caps.bucket_bytes)) {
      plan.buckets.push_back(std::exchange(bucket, Bucket{}));
      filling.is_first = false;
    }
  }
  std::sort(fillings.begin(), fillings.end(),
            [](const Filling& a, const Filling& b) { return a.last_step < b.last_step; });
  for (Filling& filling : fillings)
    if (!filling.bucket.tensors.empty()) plan.buckets.push_back(std::move(filling.bucket));
  lay_out(plan, tensors);
  return plan;
}

}  // namespace noria::bucketing
