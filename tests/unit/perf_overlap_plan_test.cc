// What the default plan can hide, in its own model: no link, no clock.
#include <gtest/gtest.h>

#include "bucketing/plan.hpp"
#include "perf/ready_times.hpp"
#include "perf/step_bounds.hpp"
#include "perf/trace.hpp"

namespace noria::perf {
namespace {

// Of `communication_ms`, how much is hidden where a bucket starts only when it is full.
double hidden_share(const Trace& trace, double backward_ms, double communication_ms) {
  const ReadyTimes times = ready_times(trace, backward_ms);
  std::vector<bucketing::PlanTensor> tensors;
  for (const TraceTensor& tensor : trace.tensors) tensors.push_back({tensor.numel, tensor.dtype});
  const bucketing::Plan plan = bucketing::plan_buckets(
      bucketing::PlanKind::ddp, tensors, bucketing::reverse_registration(tensors.size()), {});
  const double step_ms = full_buckets_step_ms(trace, times, plan, communication_ms);
  return 1 - (step_ms - backward_ms) / communication_ms;
}

TEST(Overlap_plan,
     P10_Four_fifths_of_resnet50_are_hidden_where_communication_is_half_the_backward) {
  EXPECT_GE(hidden_share(load_trace("resnet50"), 200, 100), 0.8);
}

TEST(Overlap_plan, Nothing_is_hidden_of_a_model_of_one_tensor) {
  const Trace one{.name = "one", .tensors = {{.name = "w", .shape = {1000}, .numel = 1000}}};
  EXPECT_NEAR(hidden_share(one, 200, 100), 0, 1e-9);
}

TEST(Overlap_plan, No_order_of_sending_ends_before_tensors_that_go_when_they_are_ready) {
  Trace trace{.name = "two"};
  trace.tensors = {{.name = "first", .shape = {1}, .numel = 1},
                   {.name = "last", .shape = {3}, .numel = 3}};
  const ReadyTimes times{.order = {1, 0}, .ready_ms = {100, 10}, .backward_ms = 100};

  // `last` is sent from 10 to 40, `first` from 100 to 110.
  EXPECT_DOUBLE_EQ(least_step_ms(trace, times, 40), 110);
  // Expect: over a link that is busy with `last` until 160, `first` waits for it.
  EXPECT_DOUBLE_EQ(least_step_ms(trace, times, 200), 210);
}

}  // namespace
}  // namespace noria::perf
