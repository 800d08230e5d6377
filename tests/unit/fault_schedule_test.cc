#include "verbs/soft/fault_schedule.hpp"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace noria::soft {
namespace {

// Which of the first `count` requests a rule meets, each of `bytes`.
std::vector<uint64_t> met_by(const std::string& rule, uint64_t count, uint64_t bytes = 1,
                             uint64_t seed = 1) {
  const SoftFaults faults = parse_soft_faults("qp=*: " + rule + " do lose for=1s").value();
  FaultSchedule schedule(faults.rules.front(), seed);
  std::vector<uint64_t> met;
  for (uint64_t i = 0; i < count; ++i)
    if (schedule.meets(i * bytes)) met.push_back(i);
  return met;
}

using Numbers = std::vector<uint64_t>;

TEST(Fault_schedule, After_lets_so_many_pass_and_meets_one) {
  EXPECT_EQ(met_by("after msgs=0", 10), (Numbers{0}));
  EXPECT_EQ(met_by("after msgs=3", 10), (Numbers{3}));
  EXPECT_EQ(met_by("after msgs=10", 10), (Numbers{}));
}

TEST(Fault_schedule, Every_meets_one_after_each_further_so_many) {
  EXPECT_EQ(met_by("every msgs=3", 10), (Numbers{3, 6, 9}));
  EXPECT_EQ(met_by("every msgs=1", 4), (Numbers{1, 2, 3}));
}

TEST(Fault_schedule, Bytes_are_those_before_the_request) {
  EXPECT_EQ(met_by("after bytes=1", 10, 100), (Numbers{1}));
  EXPECT_EQ(met_by("after bytes=200", 10, 100), (Numbers{2}));
  // A request may be longer than the gap.  Expect: met once by each.
  EXPECT_EQ(met_by("every bytes=10", 4, 100), (Numbers{1, 2, 3}));
  EXPECT_EQ(met_by("every bytes=150", 7, 100), (Numbers{2, 3, 5, 6}));
}

TEST(Fault_schedule, About_draws_its_gaps_from_the_seed) {
  const Numbers one = met_by("about msgs=10", 10000);
  EXPECT_EQ(met_by("about msgs=10", 10000), one);
  EXPECT_NE(met_by("about msgs=10", 10000, 1, 2), one);

  // Gaps of 1 to 19, ten in the mean.
  ASSERT_GT(one.size(), 900U);
  EXPECT_LT(one.size(), 1100U);
  for (size_t i = 1; i < one.size(); ++i) {
    EXPECT_GE(one[i] - one[i - 1], 1U);
    EXPECT_LE(one[i] - one[i - 1], 19U);
  }
  // With one it is all of them but the first.
  EXPECT_EQ(met_by("about msgs=1", 4), (Numbers{1, 2, 3}));
}

TEST(Fault_schedule, A_message_that_passes_very_many_counts_is_met_once_and_at_once) {
  const SoftFaults faults = parse_soft_faults("qp=*: about bytes=1 do lose for=1s").value();
  FaultSchedule schedule(faults.rules.front(), 5);
  EXPECT_FALSE(schedule.meets(0));
  // Gap by gap this would take hours.
  for (uint64_t i = 1; i < 1000; ++i) EXPECT_TRUE(schedule.meets(i << 50));
}

TEST(Fault_schedule, The_largest_counts_do_not_wrap) {
  const SoftFaults faults =
      parse_soft_faults("qp=*: about bytes=1073741824G do lose for=1s").value();
  FaultSchedule schedule(faults.rules.front(), 5);
  EXPECT_FALSE(schedule.meets(0));
  EXPECT_TRUE(schedule.meets(uint64_t{1} << 62));
}

}  // namespace
}  // namespace noria::soft
