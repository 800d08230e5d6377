#include "bucketing/segments.hpp"

#include <algorithm>

#include "base/check.hpp"

namespace noria::bucketing {
namespace {

// A cut gives whole units of kChunkAlign bytes; the first `extra` pieces get one unit more. Only
// the last unit of a part may be short.
struct UnitCut {
  uint64_t base, extra;

  uint64_t first(uint64_t index) const { return index * base + std::min(index, extra); }
};

UnitCut cut_units(uint64_t units, uint64_t pieces) { return {units / pieces, units % pieces}; }

uint64_t largest_block(std::span<const uint64_t> edges) {
  uint64_t largest = 0;
  for (size_t rank = 0; rank + 1 < edges.size(); ++rank)
    largest = std::max(largest, edges[rank + 1] - edges[rank]);
  return largest;
}

uint64_t elements_per_unit(uint32_t element_bytes) {
  NORIA_DCHECK(element_bytes != 0 && kChunkAlign % element_bytes == 0, "not an element size");
  return kChunkAlign / element_bytes;
}

}  // namespace

std::vector<Segment> cut_segments(std::span<const PartShape> parts, uint32_t ranks) {
  static_assert(kChunkBytes % kChunkAlign == 0);  // so that a rounded-up chunk is no larger
  std::vector<Segment> segments;
  for (uint32_t part = 0; part < parts.size(); ++part) {
    const PartShape& shape = parts[part];
    const uint64_t unit = elements_per_unit(shape.element_bytes);
    if (!shape.edges.empty()) {
      const auto slices = static_cast<uint32_t>(
          div_up(largest_block(shape.edges), kChunkBytes / shape.element_bytes));
      for (uint32_t slice = 0; slice < slices; ++slice)
        segments.push_back(
            {.part = part, .first = 0, .count = shape.count, .slice = slice, .slices = slices});
      continue;
    }
    const uint64_t units = div_up(shape.count, unit);
    const uint64_t pieces = div_up(units, kChunkBytes / kChunkAlign * ranks);
    if (pieces == 0) continue;
    const UnitCut cut = cut_units(units, pieces);
    for (uint64_t i = 0; i < pieces; ++i) {
      const uint64_t first = cut.first(i) * unit;
      const uint64_t end = std::min(cut.first(i + 1) * unit, shape.count);
      segments.push_back({.part = part, .first = first, .count = end - first});
    }
  }
  return segments;
}

Chunk chunk_of(const Segment& segment, uint32_t index, uint32_t ranks, uint32_t element_bytes) {
  const uint64_t unit = elements_per_unit(element_bytes);
  const UnitCut cut = cut_units(div_up(segment.count, unit), ranks);
  const uint64_t first = std::min(cut.first(index) * unit, segment.count);
  const uint64_t end = std::min(cut.first(index + 1) * unit, segment.count);
  return {.first = segment.first + first, .count = end - first};
}

Chunk slice_of(const Segment& segment, uint64_t first, uint64_t end, uint32_t element_bytes) {
  const uint64_t unit = elements_per_unit(element_bytes);
  const UnitCut cut = cut_units(div_up(end - first, unit), segment.slices);
  const uint64_t from = std::min(first + cut.first(segment.slice) * unit, end);
  const uint64_t to = std::min(first + cut.first(segment.slice + 1) * unit, end);
  return {.first = from, .count = to - from};
}

}  // namespace noria::bucketing
