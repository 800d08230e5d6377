#include "bucketing/segments.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "bucketing/collective.hpp"

namespace noria::bucketing {
namespace {

// Every element of every part lies in exactly one chunk, in order, within the bounds promised.
void expect_exact_cover(const std::vector<PartShape>& parts, uint32_t ranks) {
  const auto segments = cut_segments(parts, ranks);
  size_t k = 0;
  for (uint32_t part = 0; part < parts.size(); ++part) {
    const uint32_t element = parts[part].element_bytes;
    uint64_t next = 0, smallest = UINT64_MAX, largest = 0;
    for (; k < segments.size() && segments[k].part == part; ++k) {
      const Segment& segment = segments[k];
      ASSERT_EQ(segment.first, next);
      ASSERT_GT(segment.count, 0U);
      ASSERT_EQ(segment.first * element % kChunkAlign, 0U);
      smallest = std::min(smallest, segment.count * element);
      largest = std::max(largest, segment.count * element);
      for (uint32_t index = 0; index < ranks; ++index) {
        const Chunk chunk = chunk_of(segment, index, ranks, element);
        ASSERT_LE(chunk.count * element, kChunkBytes);
        if (chunk.count == 0) continue;
        ASSERT_EQ(chunk.first, next);
        ASSERT_EQ(chunk.first * element % kChunkAlign, 0U);
        next += chunk.count;
      }
      ASSERT_EQ(next, segment.first + segment.count);
    }
    ASSERT_EQ(next, parts[part].count);
    // Expect: segments of a part differ by less than two units.
    if (largest != 0) {
      ASSERT_LT(largest - smallest, 2 * kChunkAlign);
    }
  }
  ASSERT_EQ(k, segments.size());
}

TEST(SegmentsTest, Cover_every_element_exactly_once_at_the_edges) {
  for (uint32_t ranks = 1; ranks <= 9; ++ranks)
    for (const uint32_t element : {1U, 2U, 4U, 8U})
      for (const uint64_t bytes :
           {uint64_t{0}, uint64_t{element}, uint64_t{kChunkAlign}, ranks * kChunkAlign, kChunkBytes,
            ranks * kChunkBytes, 3 * ranks * kChunkBytes, 25 * 1024 * 1024 + uint64_t{0}})
        for (const int64_t shift : {-1, 0, 1}) {
          const int64_t count = static_cast<int64_t>(bytes / element) + shift;
          if (count < 0) continue;
          expect_exact_cover({{static_cast<uint64_t>(count), element}}, ranks);
        }
}

TEST(SegmentsTest, Cover_random_lists_of_parts) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 300; ++round) {
    std::vector<PartShape> parts(random() % 6);
    for (PartShape& part : parts)
      part = {.count = random() % (1ULL << (random() % 24)), .element_bytes = 1U << (random() % 4)};
    expect_exact_cover(parts, 1 + static_cast<uint32_t>(random() % 9));
  }
}

TEST(SegmentsTest, Are_as_many_as_chunks_of_full_size_need) {
  const uint64_t floats = 25 * 1024 * 1024 / 4;
  const std::vector<PartShape> part = {{floats, 4}};
  EXPECT_EQ(cut_segments(part, 2).size(), 50U);
  EXPECT_EQ(cut_segments(part, 8).size(), 13U);
  const std::vector<PartShape> one = {{1, 4}}, none = {{0, 4}};
  EXPECT_EQ(cut_segments(one, 8).size(), 1U);
  EXPECT_TRUE(cut_segments(none, 8).empty());
}

TEST(SegmentsTest, Slices_cover_every_block_exactly_once) {
  std::mt19937_64 random(2);
  for (int round = 0; round < 300; ++round) {
    const uint32_t element = 1U << (random() % 4);
    const auto ranks = static_cast<uint32_t>(1 + random() % 9);
    std::vector<uint64_t> edges{0};
    uint64_t largest = 0;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      const uint64_t count = random() % (1ULL << (random() % 22));
      largest = std::max(largest, count);
      edges.push_back(edges.back() + count);
    }
    const std::vector<PartShape> part = {
        {.count = edges.back(), .element_bytes = element, .edges = edges}};
    const std::vector<Segment> segments = cut_segments(part, ranks);
    ASSERT_EQ(segments.size(), div_up(largest * element, kChunkBytes));
    for (uint32_t rank = 0; rank < ranks; ++rank) {
      uint64_t next = edges[rank];
      for (const Segment& segment : segments) {
        const Chunk slice = slice_of(segment, edges[rank], edges[rank + 1], element);
        ASSERT_LE(slice.count * element, kChunkBytes);
        if (slice.count == 0) continue;
        ASSERT_EQ(slice.first, next);
        ASSERT_EQ((slice.first - edges[rank]) * element % kChunkAlign, 0U);
        next += slice.count;
      }
      ASSERT_EQ(next, edges[rank + 1]);
    }
  }
}

TEST(SegmentsTest, One_element_goes_to_the_first_chunk) {
  const Segment segment{.part = 0, .first = 64, .count = 1};
  EXPECT_EQ(chunk_of(segment, 0, 4, 4).count, 1U);
  for (uint32_t index = 1; index < 4; ++index) EXPECT_EQ(chunk_of(segment, index, 4, 4).count, 0U);
}

uint64_t fingerprint_of(Kind kind, int32_t root, const Part& part) {
  Collective collective;
  collective.kind = kind;
  collective.root = root;
  collective.parts = {part};
  prepare(collective, 2);
  return collective.fingerprint;
}

TEST(PrepareTest, The_fingerprint_tells_apart_whatever_ranks_must_agree_on) {
  const Part part{.count = 100, .dtype = NORIA_FLOAT32, .op = NORIA_SUM};
  const uint64_t same = fingerprint_of(Kind::all_reduce, 0, part);
  EXPECT_EQ(fingerprint_of(Kind::all_reduce, 0, part), same);

  // Expect: another kind, root, count, dtype or op gives another value.
  EXPECT_NE(fingerprint_of(Kind::broadcast, 0, part), same);
  EXPECT_NE(fingerprint_of(Kind::all_reduce, 1, part), same);
  Part other = part;
  other.count = 101;
  EXPECT_NE(fingerprint_of(Kind::all_reduce, 0, other), same);
  other = part;
  other.dtype = NORIA_INT32;
  EXPECT_NE(fingerprint_of(Kind::all_reduce, 0, other), same);
  other = part;
  other.op = NORIA_MAX;
  EXPECT_NE(fingerprint_of(Kind::all_reduce, 0, other), same);
  // So do other blocks.
  other = part;
  other.phases = Phases::reduce;
  other.edges = {0, 40, 100};
  Part cut_elsewhere = other;
  cut_elsewhere.edges = {0, 50, 100};
  EXPECT_NE(fingerprint_of(Kind::reduce_scatter, 0, other),
            fingerprint_of(Kind::reduce_scatter, 0, cut_elsewhere));
}

TEST(PrepareTest, The_fingerprint_ignores_addresses) {
  float numbers[2] = {};
  const auto* bytes = reinterpret_cast<std::byte*>(numbers);
  const Part here{.in = bytes, .count = 1}, there{.in = bytes + 4, .count = 1};
  EXPECT_EQ(fingerprint_of(Kind::all_reduce, 0, here), fingerprint_of(Kind::all_reduce, 0, there));
}

}  // namespace
}  // namespace noria::bucketing
