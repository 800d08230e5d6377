// The plan: which tensors share a bucket, in which order buckets are sent, and where all of it lies
// in the arena.
//
// Tensors are walked in reverse of their registration, which is close to the order in which a
// backward pass completes them. Each dtype fills a bucket of its own; a bucket closes when it
// reaches its cap *after* a tensor was added, so that tensors are never split and a bucket may be
// larger than its cap. The first bucket of each dtype has a small cap, so that communication starts
// early. Buckets are launched in the order in which they closed; those that never closed follow in
// the order of their last tensors, which is the order in which they become complete.
//
// In the arena buckets lie back to back in launch order, each on a kBucketAlign boundary; within a
// bucket tensors lie without gaps, so that each is aligned to its dtype.
//
// Pure: the same tensors give the same plan on every rank. Time and memory are linear.
//
// Threads: any thread.
#pragma once

#include <noria/bucketing.h>

#include <cstdint>
#include <span>
#include <vector>

#include "base/units.hpp"

namespace noria::bucketing {

inline constexpr uint64_t kDefaultBucketBytes = 25_MiB;
inline constexpr uint64_t kDefaultFirstBucketBytes = 1_MiB;
// No two buckets share a cache line, nor the pair of lines that a prefetcher pulls.
inline constexpr uint64_t kBucketAlign = 128;

struct PlanCaps {
  uint64_t first_bucket_bytes = kDefaultFirstBucketBytes;
  uint64_t bucket_bytes = kDefaultBucketBytes;
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
  std::vector<uint32_t> tensors;  // indices of registration, in fill order
};

struct Placement {
  uint32_t bucket = 0;
  uint64_t first = 0;  // element within the bucket
};

struct Plan {
  std::vector<Bucket> buckets;        // in launch order
  std::vector<Placement> placements;  // by index of registration
  uint64_t arena_bytes = 0;
};

// `tensors` in registration order; every dtype must be one that dtype_bytes() knows.
Plan plan_buckets(std::span<const PlanTensor> tensors, const PlanCaps& caps);

}  // namespace noria::bucketing
