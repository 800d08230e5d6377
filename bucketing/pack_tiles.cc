#include "bucketing/pack_tiles.hpp"

#include <algorithm>

namespace noria::bucketing {

std::vector<PackTile> cut_tiles(std::span<const PackTensor> tensors) {
  std::vector<PackTile> tiles;
  for (uint32_t slot = 0; slot < tensors.size(); ++slot) {
    const PackTensor& tensor = tensors[slot];
    for (uint64_t done = 0; done < tensor.count; done += kTileElements) {
      const uint64_t count = std::min<uint64_t>(tensor.count - done, kTileElements);
      tiles.push_back({.tensor = slot,
                       .count = static_cast<uint32_t>(count),
                       .first = tensor.first + done,
                       .at = tensor.at + done});
    }
  }
  return tiles;
}

}  // namespace noria::bucketing
