#include "bucketing/clock_offset.hpp"

#include <gtest/gtest.h>

#include <random>
#include <vector>

namespace noria::bucketing {
namespace {

TEST(Clock_offset, A_gather_bounds_it_from_both_sides) {
  // Rank 0 was in from 100 to 140; this rank, whose clock is 1000 ahead, from 1110 to 1130.
  const std::vector<ClockReading> root{{100, 140}}, mine{{1110, 1130}};
  const ClockOffset clock = clock_offset(mine, root);
  // Expect: at least 1110 - 140, at most 1130 - 100.
  EXPECT_EQ(clock.offset, 1000);
  EXPECT_GE(clock.error, 30);
  EXPECT_LE(clock.error, 31);
  EXPECT_EQ(clock.measured, 1130);
}

TEST(Clock_offset, The_best_gather_on_each_side_counts) {
  const std::vector<ClockReading> root{{100, 900}, {1000, 1010}, {2000, 2500}};
  const std::vector<ClockReading> mine{{50, 105}, {700, 1500}, {2490, 2600}};
  // Expect: the lower bound of the last, the upper bound of the first.
  const ClockOffset clock = clock_offset(mine, root);
  EXPECT_LE(clock.offset - clock.error, -10);
  EXPECT_GE(clock.offset - clock.error, -12);
  EXPECT_GE(clock.offset + clock.error, 5);
  EXPECT_LE(clock.offset + clock.error, 7);
}

// Whatever messages take, and in whatever order ranks come, the truth is within the error.
TEST(Clock_offset, The_truth_is_within_the_error_whatever_messages_take) {
  for (uint32_t seed = 0; seed < 1000; ++seed) {
    std::mt19937 random(seed);
    const auto some = [&](int64_t most) { return static_cast<int64_t>(random()) % (most + 1); };
    const int64_t truth = some(2'000'000'000) - 1'000'000'000;
    std::vector<ClockReading> root, mine;
    int64_t now = 0;
    for (int round = 0; round < 10; ++round) {
      const int64_t root_in = now + some(50'000), rank_in = now + some(50'000);
      const int64_t there = some(100'000), back = some(100'000);
      const int64_t root_out = std::max(root_in, rank_in + there) + some(1000);
      const int64_t rank_out = std::max(rank_in, root_out + back);
      root.push_back({root_in, root_out});
      mine.push_back({rank_in + truth, rank_out + truth});
      now = std::max(root_out, rank_out);
    }
    const ClockOffset clock = clock_offset(mine, root);
    EXPECT_LE(clock.offset - clock.error, truth) << seed;
    EXPECT_LE(truth, clock.offset + clock.error) << seed;
    EXPECT_LE(clock.error, 300'000) << seed;
  }
}

TEST(Clock_offset, This_machine_has_a_boot_id) { EXPECT_GT(read_boot_id().size(), 30U); }

}  // namespace
}  // namespace noria::bucketing
