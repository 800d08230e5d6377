#include "bucketing/arrival.hpp"

#include <gtest/gtest.h>

#include <thread>

namespace noria::bucketing {
namespace {

TEST(Arrival, Tells_the_order_in_which_gradients_came) {
  Arrival arrival(4);
  const Nanoseconds begun = now_ns();
  for (const uint32_t id : {2U, 0U, 3U}) arrival.note(id);
  const ArrivalTimes times = arrival.times(begun);

  // Expect: what never came is last, and times do not fall along the order.
  EXPECT_EQ(times.order, (std::vector<uint32_t>{2, 0, 3, 1}));
  EXPECT_EQ(times.places(), (std::vector<uint32_t>{1, 3, 0, 2}));
  for (size_t i = 1; i < times.order.size(); ++i)
    EXPECT_LE(times.ready_us[times.order[i - 1]], times.ready_us[times.order[i]]);
}

TEST(Arrival, The_last_of_several_fires_counts_and_a_restart_forgets) {
  Arrival arrival(3);
  const Nanoseconds begun = now_ns();
  for (const uint32_t id : {0U, 1U, 2U, 0U}) arrival.note(id);
  EXPECT_EQ(arrival.times(begun).order, (std::vector<uint32_t>{1, 2, 0}));
  arrival.restart();
  arrival.note(2);
  EXPECT_EQ(arrival.times(now_ns()).order, (std::vector<uint32_t>{2, 0, 1}));
}

TEST(Arrival, Of_several_threads_every_note_counts) {
  constexpr uint32_t kTensors = 1000;
  Arrival arrival(kTensors);
  const Nanoseconds begun = now_ns();
  std::vector<std::thread> threads;
  for (uint32_t t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      for (uint32_t id = t; id < kTensors; id += 4) arrival.note(id);
    });
  for (std::thread& thread : threads) thread.join();
  const std::vector<uint32_t> places = arrival.times(begun).places();
  for (uint32_t id = 4; id < kTensors; ++id) EXPECT_LT(places[id - 4], places[id]);
}

TEST(Arrival, Is_read_back_as_the_same) {
  const ArrivalTimes times{.order = {2, 0, 1}, .ready_us = {7, 9, 5}};
  const auto again = arrival_from_bytes(to_bytes(times), 3);
  ASSERT_TRUE(again.is_ok());
  EXPECT_EQ(again->order, times.order);
  EXPECT_EQ(again->ready_us, times.ready_us);
  EXPECT_TRUE(arrival_from_bytes(to_bytes({}), 0).is_ok());
}

TEST(Arrival, What_is_no_order_is_refused) {
  const std::string twice = to_bytes({.order = {0, 0}, .ready_us = {1, 2}});
  const std::string beyond = to_bytes({.order = {0, 2}, .ready_us = {1, 2}});
  const std::string fewer = to_bytes({.order = {0}, .ready_us = {1}});
  for (const std::string& bytes : {twice, beyond, fewer}) {
    const auto refused = arrival_from_bytes(bytes, 2);
    ASSERT_FALSE(refused.is_ok());
    EXPECT_EQ(refused.failure().code, NORIA_E_MISMATCH);
    EXPECT_NE(refused.failure().text.find("each of 2 tensors once"), std::string::npos);
  }
}

TEST(Arrival, An_order_that_fits_the_buckets_holds_nothing_back) {
  const std::vector<ReadyBucket> buckets{{100, 10}, {300, 20}, {600, 30}};
  EXPECT_EQ(held_back_ns(buckets), 0);
  EXPECT_EQ(held_back_ns({}), 0);
}

TEST(Arrival, The_reverse_order_holds_back_what_came_first) {
  // 100 bytes come last and are sent first.  Expect: 300 wait for 10, 600 for 20.
  const std::vector<ReadyBucket> buckets{{100, 30}, {300, 20}, {600, 10}};
  EXPECT_EQ(held_back_ns(buckets), (300 * 10 + 600 * 20) / 1000);
}

}  // namespace
}  // namespace noria::bucketing
