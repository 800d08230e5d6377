#include "verbs/soft/placement.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace noria::soft {
namespace {

constexpr uint64_t kLimit = 4096;

TEST(Placement, Early_goes_up_and_late_goes_down) {
  EXPECT_EQ(next_cut_early(10000, 0, kLimit).offset, 0u);
  EXPECT_EQ(next_cut_early(10000, 4096, kLimit).offset, 4096u);
  EXPECT_EQ(next_cut_early(10000, 8192, kLimit).bytes, 1808u);

  const Cut last = next_cut_late(256, 0, kLimit, 0);
  EXPECT_EQ(last.offset + last.bytes, 256u);
  EXPECT_GT(last.offset, 0u);
}

TEST(Placement, A_credit_of_64_bytes_lands_in_two_halves_the_second_first) {
  const Cut first = next_cut_late(64, 0, kLimit, 0x1000);
  EXPECT_EQ(first.offset, 32u);
  EXPECT_EQ(first.bytes, 32u);
  const Cut second = next_cut_late(64, 32, kLimit, 0x1000);
  EXPECT_EQ(second.offset, 0u);
  EXPECT_EQ(second.bytes, 32u);
}

TEST(Placement, Late_cuts_cover_each_byte_once_and_split_no_word) {
  for (const uint64_t bytes : {1u, 31u, 32u, 33u, 63u, 64u, 65u, 100u, 4096u, 70001u})
    for (const uint64_t address : {0u, 1u, 8u, 31u, 4097u}) {
      std::vector<int> covered(bytes);
      uint64_t moved = 0;
      while (moved < bytes) {
        const Cut cut = next_cut_late(bytes, moved, kLimit, address);
        ASSERT_GT(cut.bytes, 0u);
        ASSERT_LE(cut.bytes, kLimit);
        ASSERT_EQ(cut.offset + cut.bytes, bytes - moved) << "pieces must go from end to start";
        if (cut.offset > 0) {
          EXPECT_EQ((address + cut.offset) % kWholeWord, 0u);
        }
        for (uint64_t i = 0; i < cut.bytes; ++i) ++covered[cut.offset + i];
        moved += cut.bytes;
      }
      for (const int times : covered) ASSERT_EQ(times, 1);
    }
}

TEST(Placement, The_same_seed_gives_the_same_order) {
  Coin a(7), b(7), c(8);
  int heads = 0, differs = 0;
  for (int i = 0; i < 1000; ++i) {
    const bool side = a.flip();
    EXPECT_EQ(side, b.flip());
    heads += side ? 1 : 0;
    differs += side != c.flip() ? 1 : 0;
  }
  EXPECT_GT(heads, 400);
  EXPECT_LT(heads, 600);
  EXPECT_GT(differs, 300);
}

}  // namespace
}  // namespace noria::soft
