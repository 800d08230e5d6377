#include "bucketing/bucket_times.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace noria::bucketing {
namespace {

TEST(Bucket_times, The_first_of_each_kind_stays_and_the_latest_gift_counts) {
  BucketTimes times(2);
  times.restart();
  times.on_gradient(1, 30);
  times.on_gradient(1, 20);
  times.on_piece(1, 50, 60);
  times.on_piece(1, 70, 80);
  times.on_piece(1, 40, 90);  // another thread was later with an earlier gradient

  // Expect: first gradient and first piece as they came, and the last gradient.
  EXPECT_EQ(times.times(1).first, 30);
  EXPECT_EQ(times.times(1).queued, 60);
  EXPECT_EQ(times.times(1).last, 70);
  // Expect: nothing of the bucket beside it, and nothing at all after a restart.
  EXPECT_EQ(times.times(0).first, 0);
  EXPECT_EQ(times.times(0).last, 0);
  times.restart();
  EXPECT_EQ(times.times(1).first, 0);
  EXPECT_EQ(times.times(1).queued, 0);
  EXPECT_EQ(times.times(1).last, 0);
}

TEST(Bucket_times, A_gradient_without_a_time_was_given_now) {
  BucketTimes times(1);
  const Nanoseconds before = now_ns();
  times.on_gradient(0, 0);
  EXPECT_GE(times.times(0).first, before);
  EXPECT_LE(times.times(0).first, now_ns());
}

TEST(Bucket_times, Of_several_threads_the_latest_counts) {
  BucketTimes times(1);
  times.restart();
  std::vector<std::thread> threads;
  for (Nanoseconds t = 1; t <= 4; ++t)
    threads.emplace_back([&times, t] {
      for (Nanoseconds i = 0; i < 1000; ++i) times.on_piece(0, 4 * i + t, 1);
    });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(times.times(0).last, 4000);
  EXPECT_EQ(times.times(0).queued, 1);
}

}  // namespace
}  // namespace noria::bucketing
