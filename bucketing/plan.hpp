// The plan: which tensors share a bucket, in which order buckets are sent, and where all of it lies
// in the arena.
//
// Tensors are walked in a fill order, by default the reverse of their registration, which is close
// to the order in which a backward pass completes them. Each dtype fills a bucket of its own. The
// first bucket of each dtype has a small cap, so that communication starts early.
//
//  ddp     As PyTorch's DDP: a bucket closes when it reaches its cap *after* a tensor was added, so
//          that tensors are never split and a bucket may be larger than its cap. Buckets are
//          launched in the order in which they closed; those that never closed follow in the order
//          of their last tensors.
//  strict  No bucket is larger than its cap. A tensor that fits a bucket of its own stays whole, a
//          larger one goes through as many as it needs; the first and the last tensor are cut for
//          the first and the last bucket, if they are larger. The last bucket of each dtype is at
//          most last_bucket_bytes, since what becomes ready last hides behind nothing. Caps are
//          rounded down to kBucketAlign. Buckets are launched in the order in which they become
//          complete.
//
//  planned As DDP's until a step was observed; then plan_timed.hpp chooses the edges.
//
// In the arena the dtypes lie one after the other, and within a dtype the buckets in fill order,
// each on a kBucketAlign boundary. Within a bucket tensors lie without gaps, so that each is
// aligned to its dtype; a split tensor is cut at such a boundary and lies without gaps too. Where
// edges are to move under tensors that stay (planned), there are no gaps between buckets either.
//
// Pure: the same tensors give the same plan on every rank. Time and memory are linear in tensors
// and buckets.
//
// Threads: any thread.
#pragma once

#include <noria/bucketing.h>

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "base/units.hpp"

namespace noria::bucketing {

inline constexpr uint64_t kDefaultBucketBytes = 25_MiB;
inline constexpr uint64_t kDefaultFirstBucketBytes = 1_MiB;
inline constexpr uint64_t kDefaultLastBucketBytes = 1_MiB;
// No two buckets share a cache line, nor the pair of lines that a prefetcher pulls.
inline constexpr uint64_t kBucketAlign = 128;

enum class PlanKind : uint32_t {
  ddp = NORIA_PLAN_DDP,
  strict = NORIA_PLAN_STRICT,
  planned = NORIA_PLAN_PLANNED
};
inline constexpr std::array<PlanKind, 3> kPlanKinds{PlanKind::ddp, PlanKind::strict,
                                                    PlanKind::planned};
constexpr const char* plan_name(PlanKind kind) {
  switch (kind) {
    case PlanKind::ddp: return "ddp";
    case PlanKind::strict: return "strict";
    case PlanKind::planned: return "planned";
  }
  return "?";
}

struct PlanCaps {
  uint64_t first_bucket_bytes = kDefaultFirstBucketBytes;
  uint64_t bucket_bytes = kDefaultBucketBytes;
  uint64_t last_bucket_bytes = kDefaultLastBucketBytes;  // strict
};

struct PlanTensor {
  uint64_t numel = 0;  // numel * dtype_bytes() summed over all tensors must fit 63 bits
  noria_dtype dtype = NORIA_FLOAT32;
};

struct Bucket {
  noria_dtype dtype = NORIA_FLOAT32;
  uint64_t numel = 0;
  uint64_t bytes = 0;
  uint64_t arena_offset = 0;      // bytes
  std::vector<uint32_t> tensors;  // all or a part of each lies here; indices, in fill order
};

struct Plan {
  std::vector<Bucket> buckets;    // in launch order
  std::vector<uint64_t> offsets;  // of each tensor in the arena, bytes, by index of registration
  uint64_t arena_bytes = 0;
};

// A stretch of the arena.
struct ArenaRange {
  uint64_t begin = 0, end = 0;  // bytes

  uint64_t bytes() const { return end - begin; }
};
// What two have in common; without bytes if that is nothing.
ArenaRange overlap(const ArenaRange& a, const ArenaRange& b);
// Where of the arena the bucket holds the tensor that lies at `tensor`.
ArenaRange part_in_bucket(const Bucket& bucket, const ArenaRange& tensor);

// The order that is known before any step.
std::vector<uint32_t> reverse_registration(size_t tensors);

// `tensors` in registration order; every dtype must be one that dtype_bytes() knows. `fill_order`
// names each tensor once.
Plan plan_buckets(PlanKind kind, std::span<const PlanTensor> tensors,
                  std::span<const uint32_t> fill_order, const PlanCaps& caps);
// The most that a plan of these tensors takes of the arena, in whatever order they are filled in.
uint64_t most_arena_bytes(std::span<const PlanTensor> tensors);

// From now on buckets are sent in the order in which their last tensors come; what comes together
// stays as it is. `arrival` is a time or a place in a row, by tensor.
void launch_in_order(Plan& plan, std::span<const uint32_t> arrival);

// The same on two ranks if their plans are.
uint64_t fingerprint_of(const Plan& plan);

}  // namespace noria::bucketing
