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
inline std::vector<uint64_t> shard_edges(uint64_t numel, uint32_t ranks, uint32_t element_bytes) {
  const uint64_t length = align_up(div_up(numel, uint64_t{ranks}), kShardAlign / element_bytes);
  std::vector<uint64_t> edges;
  for (uint32_t rank = 0; rank <= ranks; ++rank) edges.push_back(std::min(rank * length, numel));
  return edges;
}
inline std::vector<uint64_t> shard_edges(const Bucket& bucket, uint32_t ranks) {
  return shard_edges(bucket.numel, ranks, dtype_bytes(bucket.dtype));
}

}  // namespace noria::bucketing
