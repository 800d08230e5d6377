#include "base/counters.hpp"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace noria {
namespace {

uint64_t total(Counter counter) { return counter_totals()[static_cast<size_t>(counter)]; }

TEST(Counters, Are_summed_over_all_owners) {
  const uint64_t before = total(Counter::bytes_sent);
  CounterCells first;
  CounterCells second;
  first.add(Counter::bytes_sent, 5);
  second.add(Counter::bytes_sent, 7);
  second.add(Counter::reads);
  EXPECT_EQ(total(Counter::bytes_sent) - before, 12U);
}

TEST(Counters, Do_not_go_down_when_their_owner_goes) {
  const uint64_t before = total(Counter::reads);
  auto first = std::make_unique<CounterCells>();
  auto second = std::make_unique<CounterCells>();
  auto third = std::make_unique<CounterCells>();
  first->add(Counter::reads, 1);
  second->add(Counter::reads, 2);
  third->add(Counter::reads, 4);

  // The middle, the last and the first of the list go in turn.  Expect: nothing is lost.
  second.reset();
  EXPECT_EQ(total(Counter::reads) - before, 7U);
  first.reset();
  third.reset();
  EXPECT_EQ(total(Counter::reads) - before, 7U);
}

TEST(Counters, May_be_read_while_owners_count_come_and_go) {
  constexpr uint64_t kEach = 2000;
  const uint64_t before = total(Counter::messages_sent);
  std::vector<std::thread> owners;
  for (int i = 0; i < 3; ++i)
    owners.emplace_back([] {
      for (uint64_t n = 0; n < kEach; ++n) CounterCells().add(Counter::messages_sent);
    });
  uint64_t last = before;
  for (int i = 0; i < 200; ++i) {
    const uint64_t now = total(Counter::messages_sent);
    EXPECT_GE(now, last);  // never down
    last = now;
  }
  for (std::thread& owner : owners) owner.join();
  EXPECT_EQ(total(Counter::messages_sent) - before, 3 * kEach);
}

TEST(Counters, Every_row_says_what_it_counts) {
  for (const CounterRow& row : kCounterRows) {
    EXPECT_FALSE(std::string(row.unit).empty()) << row.name;
    EXPECT_TRUE(std::string(row.sentence).ends_with(".")) << row.name;
  }
}

}  // namespace
}  // namespace noria
