// How a bucket is shared out where every rank keeps its own part of the reduction only.
//
// Rank r's shard is one contiguous range; all are of the same length, a multiple of kShardAlign,
// but the last ones, which may be shorter or empty. So an optimizer's state has the same shape on
// nearly all ranks, vector instructions never straddle two shards, and nothing is padded in memory.
//
// Pure: the same bucket gives the same shards on every rank.
//
// Threads: any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/units.hpp"
#include "bucketing/kernels.hpp"
#include "bucketing/plan.hpp"

namespace noria::bucketing {

inline constexpr uint64_t kShardAlign = 128;  // bytes, from the bucket's start

// Where rank r's shard begins, in elements; it ends where the next rank's begins.
inline uint64_t shard_begin(const Bucket& bucket, uint32_t rank, uint32_t ranks) {
  const uint64_t length =
      align_up(div_up(bucket.numel, uint64_t{ranks}), kShardAlign / dtype_bytes(bucket.dtype));
  return std::min(rank * length, bucket.numel);
}
// Of all ranks, and the end of the last.
inline std::vector<uint64_t> shard_edges(const Bucket& bucket, uint32_t ranks) {
  std::vector<uint64_t> edges;
  for (uint32_t rank = 0; rank <= ranks; ++rank) edges.push_back(shard_begin(bucket, rank, ranks));
  return edges;
}
// Where of the arena it lies.
inline ArenaRange shard_of(const Bucket& bucket, uint32_t rank, uint32_t ranks) {
  const uint64_t element = dtype_bytes(bucket.dtype);
  return {bucket.arena_offset + shard_begin(bucket, rank, ranks) * element,
          bucket.arena_offset + shard_begin(bucket, rank + 1, ranks) * element};
}

}  // namespace noria::bucketing
