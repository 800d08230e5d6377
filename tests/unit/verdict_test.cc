#include "bucketing/verdict.hpp"

#include <gtest/gtest.h>

namespace noria::bucketing {
namespace {

TensorTable tensors(uint32_t count) {
  TensorTable table;
  for (uint32_t i = 0; i < count; ++i)
    EXPECT_TRUE(table.add("t" + std::to_string(i), NORIA_FLOAT32, i).is_ok());
  return table;
}

TEST(Verdict, No_complaint_is_zero_and_silent) {
  EXPECT_EQ(verdict_of({}), 0);
  EXPECT_EQ(describe({}, tensors(3)), "");
}

TEST(Verdict, The_gravest_complaint_is_the_largest) {
  const int32_t twice = verdict_of({.late = {1}});
  const int32_t missing = verdict_of({.missing = {1}, .late = {2}});
  EXPECT_EQ(verdict_of({.partly = {1}}), missing);
  const int32_t reset = verdict_of({.late = {1}, .was_reset = true});
  EXPECT_LT(0, twice);
  EXPECT_LT(twice, missing);
  EXPECT_LT(missing, reset);
  EXPECT_EQ(code_of(twice), NORIA_E_DUP_READY);
  EXPECT_EQ(code_of(missing), NORIA_E_MISSING);
  EXPECT_EQ(code_of(reset), NORIA_E_ABORTED);
}

TEST(Verdict, A_failure_names_step_ranks_tensors_and_advice) {
  const TensorTable table = tensors(161);
  const std::vector<std::string> descriptions{told_of({}, table),
                                              told_of({.missing = {3, 160}, .late = {7}}, table),
                                              told_of({.late = {0}}, table)};
  const Failure failure = compose_failure(verdict_of({.missing = {3}}), 12, descriptions);
  EXPECT_EQ(failure.code, NORIA_E_MISSING);
  EXPECT_TRUE(
      failure.text.starts_with("step 12 failed: rank 1 did not give 't3', 't160' (2 of 161 "
                               "tensors) and gave too often 't7' (1 "
                               "of "
                               "161 tensors); rank 2 gave too often 't0' (1 of 161 tensors); call "
                               "noria_grad_ready() for every"))
      << failure.text;
}

TEST(Verdict, Texts_stay_short_whatever_is_missing) {
  TensorTable table;
  Complaints complaints;
  for (uint32_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(table.add(std::to_string(i) + std::string(4000, 'n'), NORIA_FLOAT32, 1).is_ok());
    complaints.missing.push_back(i);
  }
  const std::string text = told_of(complaints, table);
  EXPECT_LE(text.size(), 1024u);
  EXPECT_NE(text.find("and others (100 of 100 tensors)"), std::string::npos);

  const Failure failure =
      compose_failure(verdict_of(complaints), 0, std::vector<std::string>(1000, text));
  EXPECT_LE(failure.text.size(), 10'000u);
  EXPECT_NE(failure.text.find("and 992 more ranks"), std::string::npos);
}

TEST(Verdict, A_hook_that_failed_is_told_with_its_bucket_code_and_text) {
  const TensorTable table = tensors(1);
  const Complaints before{
      .hook = HookComplaint{
          .moment = NORIA_HOOK_BEFORE, .bucket = 3, .code = -7, .text = "scale is off"}};
  const Complaints after{.hook = HookComplaint{.moment = NORIA_HOOK_AFTER, .code = 1, .text = ""}};
  EXPECT_TRUE(before.is_any());
  const Failure failure =
      compose_failure(verdict_of(before), 2, {told_of(before, table), told_of(after, table)});
  EXPECT_EQ(failure.code, NORIA_E_HOOK);
  EXPECT_TRUE(failure.text.starts_with(
      "step 2 failed: rank 0 had its hook fail for bucket 3 before it was sent, with code -7: "
      "'scale is off'; rank 1 had its hook fail for bucket 0 after it was reduced, with code 1; "))
      << failure.text;
  // Expect: what a rank missed is graver, and values that are not finite are not.
  EXPECT_LT(verdict_of(before), verdict_of({.late = {0}}));
  EXPECT_GT(verdict_of(before), verdict_of({.nonfinite = {0}}));
}

TEST(Verdict, Of_what_ranks_found_in_results_the_gravest_counts) {
  const TensorTable table = tensors(3);
  const Complaints overflow{.overflowed = {2}, .overflowed_bucket = 4};
  const Complaints hook{.hook = HookComplaint{.moment = NORIA_HOOK_AFTER, .code = 1, .text = ""}};
  EXPECT_TRUE(overflow.is_any());
  EXPECT_EQ(gravest_of({"", told_of({}, table)}), 0);
  const std::vector<std::string> told{"", told_of(overflow, table), ""};
  EXPECT_EQ(code_of(gravest_of(told)), NORIA_E_NONFINITE);
  EXPECT_EQ(code_of(gravest_of({told_of(overflow, table), told_of(hook, table)})), NORIA_E_HOOK);
  const Failure failure = compose_failure(gravest_of(told), 7, told);
  EXPECT_EQ(failure.code, NORIA_E_NONFINITE);
  EXPECT_TRUE(
      failure.text.starts_with("step 7 failed: rank 1 has sums that are not finite in its shard of "
                               "bucket 4, 't2' (1 of 3 tensors), though all gradients are; skip"))
      << failure.text;
}

TEST(Verdict, A_rank_that_was_reset_says_so) {
  const TensorTable table = tensors(1);
  const Failure failure = compose_failure(verdict_of({.was_reset = true}), 0,
                                          {"", told_of({.was_reset = true}, table)});
  EXPECT_EQ(failure.code, NORIA_E_ABORTED);
  EXPECT_NE(failure.text.find("rank 1 was reset in the midst of the step"), std::string::npos);
}

}  // namespace
}  // namespace noria::bucketing
