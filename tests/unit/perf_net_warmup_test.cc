#include "perf/net_warmup.hpp"

#include <gtest/gtest.h>

namespace noria::perf {
namespace {

// Messages before the measured ones, each of which takes so long, and the time of all.
struct Warmed {
  uint64_t messages;
  Nanoseconds time;
};
Warmed warm_up(uint64_t bytes, Nanoseconds of_one) {
  constexpr Nanoseconds kStart = 7_s;
  NetWarmup warmup(bytes, kStart);
  while (!warmup.is_enough(kStart + static_cast<Nanoseconds>(warmup.goal()) * of_one)) {
  }
  return {warmup.goal(), static_cast<Nanoseconds>(warmup.goal()) * of_one};
}

TEST(Net_warmup, Every_queue_goes_round_but_for_large_messages) {
  EXPECT_EQ(warm_up(1, 1000).messages, 64u);
  EXPECT_EQ(warm_up(16_MiB, 1000).messages, 64u);
  EXPECT_EQ(warm_up(64_MiB, 1000).messages, 16u);
  EXPECT_EQ(warm_up(400_MiB, 1000).messages, 2u);
  EXPECT_EQ(warm_up(1_GiB, 1000).messages, 1u);
}

TEST(Net_warmup, No_round_begins_once_its_time_is_over) {
  // 16 MiB at 40 MB/s.
  EXPECT_EQ(warm_up(16_MiB, 400'000'000).messages, 2u);
  EXPECT_EQ(warm_up(64, 10'000'000).messages, 64u);
  // Expect: what is longer than all of the time passes once.
  EXPECT_EQ(warm_up(64_MiB, 2_s).messages, 1u);
  for (const Nanoseconds of_one : {20'000'000, 31'000'000, 124'000'000, 499'999'999})
    EXPECT_LT(warm_up(1_MiB, of_one).time, 2 * kNetWarmupTime);
}

}  // namespace
}  // namespace noria::perf
