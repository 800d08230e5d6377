#include "plugin/tuner/review.hpp"

#include <gtest/gtest.h>

namespace noria::plugin::tuner {
namespace {

std::vector<std::string> findings(const std::string& rows) {
  const auto table = parse_table("noria_table,1\n" + rows, "t.csv");
  EXPECT_TRUE(table.is_ok());
  return table ? review(*table) : std::vector<std::string>();
}
using Lines = std::vector<std::string>;

TEST(Tuner_review, Rows_side_by_side_and_of_different_choices_are_well) {
  EXPECT_EQ(findings("all_reduce,0-1M,2,8,*,*,*,*,Ring,LL,0,0,10,20,x\n"
                     "all_reduce,0-1M,2,8,*,*,*,*,Tree,LL,0,0,11,21,x\n"
                     "all_reduce,1M-,2,8,*,*,*,*,Ring,LL,0,0,10,20,x\n"
                     "all_reduce,0-1M,4,8,*,*,*,*,Ring,LL,0,0,10,20,x\n"
                     "all_reduce,0-1M,2,8,*,ib,*,*,Ring,LL,0,0,10,20,x\n"
                     "all_gather,0-1M,2,8,*,*,*,*,Ring,LL,0,0,10,20,x\n"),
            Lines{"line 6 is never reached: line 2 has the same choice and fits wherever it does"});
}

TEST(Tuner_review, Links_and_GPUs_that_never_meet_are_apart) {
  EXPECT_EQ(findings("all_reduce,*,*,*,*,ib400,hopper,2.29,Ring,LL,0,0,-,-,x\n"
                     "all_reduce,*,*,*,*,ib200,hopper,2.29,Ring,LL,4,0,-,-,x\n"
                     "all_reduce,*,*,*,*,eth,hopper,2.29,Ring,LL,4,0,-,-,x\n"
                     "all_reduce,*,*,*,*,ib400,ampere,2.29,Ring,LL,4,0,-,-,x\n"
                     "all_reduce,*,*,*,*,ib400,hopper,2.30,Ring,LL,4,0,-,-,x\n"),
            Lines());
}

TEST(Tuner_review, Rows_that_meet_and_say_different_things_contradict) {
  EXPECT_EQ(findings("all_reduce,0-2M,2,*,*,*,*,*,Ring,LL,0,0,-,-,x\n"
                     "all_reduce,1M-4M,2,*,*,*,*,*,Ring,LL,4,0,-,-,x\n"
                     "all_reduce,3M-8M,2,*,*,*,*,*,Ring,LL,4,0,-,-,x\n"),
            Lines{"line 3 contradicts line 2: both have this choice where both fit, and say "
                  "different things of it"});
}

TEST(Tuner_review, A_row_that_several_leave_no_size_is_never_reached) {
  const std::string second = "all_reduce,4M-,2,*,*,*,*,*,Ring,LL,0,0,-,-,x\n";
  const std::string first = "all_reduce,0-4M,*,*,*,*,*,*,Ring,LL,0,0,-,-,x\n";
  const std::string all = "all_reduce,*,2,8,*,*,*,*,Ring,LL,0,0,-,-,x\n";
  EXPECT_EQ(findings(second + first + all),
            Lines{"line 4 is never reached: earlier lines have the same choice and fit wherever it "
                  "does"});
  // A gap, another choice, and a part that is of fewer nodes leave it something.
  EXPECT_EQ(findings(second + "all_reduce,0-3M,*,*,*,*,*,*,Ring,LL,0,0,-,-,x\n" + all), Lines());
  EXPECT_EQ(findings(second + "all_reduce,0-4M,*,*,*,*,*,*,Tree,LL,0,0,-,-,x\n" + all), Lines());
  EXPECT_EQ(findings(second + first + "all_reduce,*,*,8,*,*,*,*,Ring,LL,0,0,-,-,x\n"), Lines());
  EXPECT_EQ(findings(first + all), Lines());
}

TEST(Tuner_review, The_slower_row_does_not_come_first) {
  EXPECT_EQ(findings("all_reduce,0-1M,*,*,*,*,*,*,Ring,LL,0,0,10,20,x\n"
                     "all_reduce,*,*,*,*,*,*,*,Tree,LL,0,0,5,30,x\n"),
            Lines{"line 2 counts before line 3, and is predicted to be slower at 0 bytes"});
  // Only where both fit, and an open end counts.
  EXPECT_EQ(findings("all_reduce,512K-,*,*,*,*,*,*,Ring,LL,0,0,10,31,x\n"
                     "all_reduce,*,*,*,*,*,*,*,Tree,LL,0,0,10,20,x\n")
                .size(),
            1u);
  EXPECT_EQ(findings("all_reduce,0-1,*,*,*,*,*,*,Ring,LL,0,0,10,31,x\n"
                     "all_reduce,*,*,*,*,*,*,*,Tree,LL,0,0,10,20,x\n"),
            Lines());
}

TEST(Tuner_review, No_more_is_said_than_was_asked_for) {
  const auto table = parse_table(
      "noria_table,1\n"
      "reduce,*,*,*,*,*,*,*,Ring,LL,0,0,-,-,x\n"
      "reduce,*,*,*,*,*,*,*,Ring,LL,0,0,-,-,x\n"
      "reduce,*,*,*,*,*,*,*,Ring,LL,0,0,-,-,x\n",
      "t.csv");
  EXPECT_EQ(review(*table).size(), 2u);
  EXPECT_EQ(review(*table, 1).size(), 1u);
}

}  // namespace
}  // namespace noria::plugin::tuner
