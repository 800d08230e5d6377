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

// Rank r's shard is [edges[r], edges[r + 1]), in elements.
inline std::vector<uint64_t> shard_edges(const Bucket& bucket, uint32_t ranks) {
  const uint64_t length =
      align_up(div_up(bucket.numel, uint64_t{ranks}), kShardAlign / dtype_bytes(bucket.dtype));
  std::vector<uint64_t> edges;
  for (uint32_t rank = 0; rank <= ranks; ++rank)
    edges.push_back(std::min(rank * length, bucket.numel));
  return edges;
}
// Where of the arena it lies.
inline ArenaRange shard_of(const Bucket& bucket, uint32_t rank, uint32_t ranks) {
  const std::vector<uint64_t> edges = shard_edges(bucket, ranks);
  const uint64_t element = dtype_bytes(bucket.dtype);
  return {bucket.arena_offset + edges[rank] * element,
          bucket.arena_offset + edges[rank + 1] * element};
}

}  // namespace noria::bucketing
