#include "bucketing/producer_streams.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <thread>
#include <vector>

namespace noria::bucketing {
namespace {

cuda::Stream stream(uintptr_t number) { return reinterpret_cast<cuda::Stream>(number); }

std::vector<cuda::Stream> all_of(const ProducerStreams& streams) {
  std::vector<cuda::Stream> all;
  EXPECT_TRUE(streams
                  .each([&](cuda::Stream seen) -> Outcome<Ok> {
                    all.push_back(seen);
                    return Ok{};
                  })
                  .is_ok());
  return all;
}

TEST(ProducerStreams, Each_stream_is_there_once_until_there_is_no_room) {
  ProducerStreams streams;
  for (unsigned round = 0; round < 2; ++round)
    for (uintptr_t i = 1; i <= ProducerStreams::kMost; ++i) EXPECT_TRUE(streams.add(stream(i)));
  EXPECT_FALSE(streams.add(stream(ProducerStreams::kMost + 1)));
  EXPECT_EQ(all_of(streams).size(), ProducerStreams::kMost);
  streams.clear();
  EXPECT_TRUE(all_of(streams).empty());
  EXPECT_TRUE(streams.add(stream(99)));
  EXPECT_EQ(all_of(streams), std::vector{stream(99)});
}

TEST(ProducerStreams, The_first_failure_of_a_visit_ends_it) {
  ProducerStreams streams;
  for (uintptr_t i = 1; i <= 3; ++i) EXPECT_TRUE(streams.add(stream(i)));
  unsigned visits = 0;
  const Outcome<Ok> visited = streams.each([&](cuda::Stream seen) -> Outcome<Ok> {
    ++visits;
    if (seen == stream(2)) return Failure{NORIA_E_DEVICE, "second"};
    return Ok{};
  });
  EXPECT_EQ(visits, 2U);
  EXPECT_EQ(visited.failure().text, "second");
}

TEST(ProducerStreams, Threads_that_add_the_same_streams_at_once_lose_none) {
  for (unsigned round = 0; round < 200; ++round) {
    ProducerStreams streams;
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < 3; ++t)
      threads.emplace_back([&, t] {
        for (uintptr_t i = 0; i < 6; ++i) EXPECT_TRUE(streams.add(stream(1 + (i + t) % 6)));
      });
    for (std::thread& thread : threads) thread.join();
    std::vector<cuda::Stream> all = all_of(streams);
    std::sort(all.begin(), all.end());
    EXPECT_EQ(std::unique(all.begin(), all.end()), all.end());
    EXPECT_EQ(all.size(), 6U);
  }
}

}  // namespace
}  // namespace noria::bucketing
