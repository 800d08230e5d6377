#include "bucketing/step_times.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace noria::bucketing {
namespace {

noria_bucket_info bucket(Nanoseconds last_gradient, Nanoseconds start, Nanoseconds end) {
  return {.bytes = 100,
          .ready_ns = last_gradient,
          .start_ns = start,
          .end_ns = end,
          .wire_ns = end - start};
}

void expect_sums(const noria_step_info& step) {
  EXPECT_EQ(step.begin_ns + step.compute_ns + step.exposed_ns, step.end_ns);
  EXPECT_EQ(step.backlog_ns + step.tail_ns + step.finish_ns, step.exposed_ns);
}

TEST(Step_times, What_was_done_before_the_last_gradient_is_hidden) {
  const auto step =
      step_info(7, 1000, 2100, std::vector{bucket(1500, 1400, 1800), bucket(2000, 1900, 2080)});
  EXPECT_EQ(step.step, 7U);
  EXPECT_EQ(step.buckets, 2U);
  EXPECT_EQ(step.bytes, 200U);
  EXPECT_EQ(step.last_gradient_ns, 2000);
  EXPECT_EQ(step.compute_ns, 1000);
  EXPECT_EQ(step.communication_ns, 400 + 180);
  // Expect: only the tail of the last bucket, and the end.
  EXPECT_EQ(step.exposed_ns, 100);
  EXPECT_EQ(step.backlog_ns, 0);
  EXPECT_EQ(step.tail_ns, 80);
  EXPECT_EQ(step.finish_ns, 20);
  expect_sums(step);
}

TEST(Step_times, Buckets_that_still_wait_for_the_link_are_a_backlog) {
  // Done out of order, as buckets that are sent while they fill may be.
  const auto step = step_info(
      0, 0, 1000, std::vector{bucket(300, 100, 900), bucket(400, 300, 700), bucket(200, 200, 500)});
  EXPECT_EQ(step.exposed_ns, 600);
  EXPECT_EQ(step.backlog_ns, 300);  // to 700, where one bucket is left
  EXPECT_EQ(step.tail_ns, 200);
  EXPECT_EQ(step.finish_ns, 100);
  expect_sums(step);
}

TEST(Step_times, All_buckets_done_before_the_last_gradient_leave_the_end_alone) {
  // The last gradient has no bytes in any bucket that was still to be reduced.
  const auto step =
      step_info(0, 0, 1000, std::vector{bucket(900, 100, 500), bucket(400, 300, 600)});
  EXPECT_EQ(step.backlog_ns, 0);
  EXPECT_EQ(step.tail_ns, 0);
  EXPECT_EQ(step.finish_ns, 100);
  expect_sums(step);
}

TEST(Step_times, Nothing_to_reduce_is_all_end) {
  const auto none = step_info(0, 10, 30, {});
  EXPECT_EQ(none.compute_ns, 0);
  EXPECT_EQ(none.exposed_ns, 20);
  expect_sums(none);
  // Expect: the same of a bucket without bytes, which has no times.
  expect_sums(step_info(0, 10, 30, std::vector{bucket(0, 0, 0)}));
  EXPECT_EQ(step_info(0, 10, 30, std::vector{bucket(0, 0, 0)}).exposed_ns, 20);
}

}  // namespace
}  // namespace noria::bucketing
