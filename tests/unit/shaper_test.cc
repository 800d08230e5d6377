#include "verbs/soft/shaper.hpp"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace noria::soft {
namespace {

constexpr double kRate = 8;  // Gbit/s: a byte takes a nanosecond
constexpr double kLatency = 20;

TEST(Shaper, Is_off_unless_asked_for) {
  EXPECT_FALSE(Shaper().is_on());
  EXPECT_FALSE(Shaper(0, 0).is_on());
  EXPECT_TRUE(Shaper(0, 1).is_on());
  EXPECT_TRUE(Shaper(1, 0).is_on());
}

TEST(Shaper, A_lone_message_takes_its_bytes_over_the_rate_and_the_latency) {
  const Shaper shaper(kRate, kLatency);
  PortSchedule a, b;
  EXPECT_EQ(shaper.send(a, b, 1_s, 1'000'000), 1_s + 1_ms + 20_us);
  EXPECT_EQ(shaper.acknowledged(5), 5 + 20_us);
}

TEST(Shaper, A_read_asks_first) {
  const Shaper shaper(kRate, kLatency);
  PortSchedule target, reader;
  EXPECT_EQ(shaper.read(target, reader, 1_s, 1'000'000), 1_s + 20_us + 1_ms + 20_us);

  // The bytes used the target's egress.  Expect: its own next message waits for them.
  EXPECT_EQ(shaper.send(target, reader, 1_s, 1000), 1_s + 20_us + 1_ms + 1_us + 20_us);
}

TEST(Shaper, A_stream_keeps_its_rate_however_late_software_looks) {
  const Shaper shaper(kRate, kLatency);
  PortSchedule a, b;
  // A message of 100 chunks posted at 0; each chunk is booked when the one before has been seen,
  // which a clock that wakes up to 300 us late does at random times. Virtual time must not care.
  Nanoseconds now = 0, arrival = 0;
  for (int i = 0; i < 100; ++i) {
    arrival = shaper.send(a, b, 0, 256_KiB);
    now = std::max(now, arrival) + i * 7919 % 300'000;
  }
  EXPECT_EQ(arrival, 100 * 262'144 + 20_us);
  EXPECT_GT(now, arrival);
}

TEST(Shaper, An_idle_port_saves_nothing_up) {
  const Shaper shaper(kRate, 0);
  PortSchedule a, b;
  EXPECT_EQ(shaper.send(a, b, 0, 1000), 1000);
  // A second of silence.  Expect: full wire time again, from the post on.
  EXPECT_EQ(shaper.send(a, b, 1_s, 1000), 1_s + 1000);
}

TEST(Shaper, Two_senders_share_the_ingress_of_one_receiver) {
  const Shaper shaper(kRate, kLatency);
  PortSchedule a, b, receiver;
  EXPECT_EQ(shaper.send(a, receiver, 0, 1'000'000), 1_ms + 20_us);
  EXPECT_EQ(shaper.send(b, receiver, 0, 1'000'000), 2_ms + 20_us);
}

TEST(Shaper, Two_receivers_share_the_egress_of_one_sender) {
  const Shaper shaper(kRate, kLatency);
  PortSchedule sender, a, b;
  EXPECT_EQ(shaper.send(sender, a, 0, 1'000'000), 1_ms + 20_us);
  EXPECT_EQ(shaper.send(sender, b, 0, 1'000'000), 2_ms + 20_us);
}

TEST(Shaper, Directions_do_not_share) {
  const Shaper shaper(kRate, kLatency);
  PortSchedule a, b;
  EXPECT_EQ(shaper.send(a, b, 0, 1'000'000), 1_ms + 20_us);
  EXPECT_EQ(shaper.send(b, a, 0, 1'000'000), 1_ms + 20_us);
}

TEST(Shaper, Latency_alone_books_nothing) {
  const Shaper shaper(0, kLatency);
  PortSchedule a, b;
  EXPECT_EQ(shaper.send(a, b, 100, 1_GiB), 100 + 20_us);
  EXPECT_EQ(shaper.send(a, b, 100, 1_GiB), 100 + 20_us);
}

TEST(Shaper, Is_never_faster_than_the_rate) {
  for (const double rate : {0.001, 1.0, 25.0, 399.9, 100000.0}) {
    const Shaper shaper(rate, 0);
    for (const uint64_t bytes : {uint64_t{1}, uint64_t{63}, 1_MiB, 1_GiB})
      EXPECT_GE(static_cast<double>(shaper.duration(bytes)) * rate / 8 * (1 + 1e-12),
                static_cast<double>(bytes));
  }
}

TEST(Shaper, Chunks_add_up_and_the_last_is_small) {
  for (const uint64_t bytes :
       {uint64_t{0}, uint64_t{1}, 16_KiB, 16_KiB + 1, 256_KiB, 272_KiB, 272_KiB + 1, 25_MiB + 3}) {
    uint64_t remaining = bytes, last = 0;
    while (remaining > 0) {
      last = Shaper::chunk(remaining);
      ASSERT_GT(last, 0u);
      ASSERT_LE(last, 256_KiB);
      remaining -= last;
    }
    EXPECT_LE(last, 16_KiB) << bytes;
  }
}

TEST(Shaper, Concurrent_bookings_never_overlap) {
  const Shaper shaper(kRate, 0);
  constexpr int kThreads = 4, kEach = 5000;
  PortSchedule shared;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t)
    threads.emplace_back([&] {
      PortSchedule mine;
      for (int i = 0; i < kEach; ++i) shaper.send(mine, shared, 0, 10);
    });
  for (std::thread& thread : threads) thread.join();
  // Expect: every byte had its own time on the shared port.
  EXPECT_GE(shared.ingress_free.load(), kThreads * kEach * 10);
}

}  // namespace
}  // namespace noria::soft
