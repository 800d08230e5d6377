// How a collective is cut: parts into segments, segments into one chunk a rank.
//
// A segment is a range of its part, and its chunks are cut from that range. Where each rank owns a
// block of the part, a segment is one slice of every block instead, and a rank's chunk is the slice
// of its block.
//
// A segment is the unit of readiness and of the ring's pipeline: while one is added, the next is on
// the wire, and a bucket is sent as it fills. A chunk is at most kChunkBytes, so that what was
// fetched is still in the cache when it is added (measured best near 256 KiB: a core's L2 holds the
// fetched block, the addend and the result). Pure functions of their arguments: all ranks compute
// the same.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/units.hpp"

namespace noria::bucketing {

inline constexpr uint64_t kChunkBytes = 256_KiB;
// Chunk edges are multiples of this within a segment, so that no cache line is shared by two ranks.
inline constexpr uint64_t kChunkAlign = 128;

struct PartShape {
  uint64_t count = 0;  // elements
  uint32_t element_bytes = 4;
  std::span<const uint64_t> edges = {};  // of the ranks' blocks, ranks + 1; empty: none
};

struct Segment {
  uint32_t part = 0;
  uint64_t first = 0;  // element within the part
  uint64_t count = 0;  // elements
  // Of blocks, `slice` of `slices` of each; first and count then span them all.
  uint32_t slice = 0;
  uint32_t slices = 0;
};

struct Chunk {
  uint64_t first = 0;  // element within the part
  uint64_t count = 0;  // elements; may be 0 at the end of a small segment
};

// Every part gives ceil(bytes / (ranks * kChunkBytes)) segments of nearly equal size, one of blocks
// ceil(bytes of the largest / kChunkBytes); an empty part gives none.
std::vector<Segment> cut_segments(std::span<const PartShape> parts, uint32_t ranks);

// The index-th of `ranks` chunks of a segment.
Chunk chunk_of(const Segment& segment, uint32_t index, uint32_t ranks, uint32_t element_bytes);

// The slice of the block [first, end) that belongs to a segment of blocks.
Chunk slice_of(const Segment& segment, uint64_t first, uint64_t end, uint32_t element_bytes);

}  // namespace noria::bucketing
