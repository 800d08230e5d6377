// How a bucket is cut into tiles.
//
// Pure. Threads: any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "bucketing/pack_tile.hpp"

namespace noria::bucketing {

// What of a tensor a bucket holds: `count` elements from `first` on, at element `at` of the bucket.
struct PackTensor {
  uint64_t first = 0;
  uint64_t count = 0;
  uint64_t at = 0;
};

// In the order of the bucket; the slot of a tensor is its index. Those without elements have no
// tile, others as few as there can be, all but the last of kTileElements.
std::vector<PackTile> cut_tiles(std::span<const PackTensor> tensors);

}  // namespace noria::bucketing
