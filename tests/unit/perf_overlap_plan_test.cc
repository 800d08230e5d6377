// What the default plan can hide, in its own model: no link, no clock.
#include <gtest/gtest.h>

#include "bucketing/plan.hpp"
#include "perf/ready_times.hpp"
#include "perf/trace.hpp"

namespace noria::perf {
namespace {

// Of `communication_ms`, how much is hidden where a bucket starts only when it is full.
double hidden_share(const Trace& trace, double backward_ms, double communication_ms) {
  const ReadyTimes times = ready_times(trace, backward_ms);
  std::vector<bucketing::PlanTensor> tensors;
  for (const TraceTensor& tensor : trace.tensors) tensors.push_back({tensor.numel, tensor.dtype});
  std::vector<FullBucket> full;
  for (const bucketing::Bucket& bucket :
       bucketing::plan_buckets(bucketing::PlanKind::ddp, tensors,
                               bucketing::reverse_registration(tensors.size()), {})
           .buckets) {
    FullBucket b{.wire_ms = communication_ms * static_cast<double>(bucket.bytes) /
                            static_cast<double>(trace.bytes())};
    for (const uint32_t id : bucket.tensors) b.ready_ms = std::max(b.ready_ms, times.ready_ms[id]);
    full.push_back(b);
  }
  return 1 - (step_of_full_buckets(full) - backward_ms) / communication_ms;
}

TEST(Overlap_plan,
     P10_Four_fifths_of_resnet50_are_hidden_where_communication_is_half_the_backward) {
  EXPECT_GE(hidden_share(load_trace("resnet50"), 200, 100), 0.8);
}

TEST(Overlap_plan, Nothing_is_hidden_of_a_model_of_one_tensor) {
  const Trace one{.name = "one", .tensors = {{.name = "w", .shape = {1000}, .numel = 1000}}};
  EXPECT_NEAR(hidden_share(one, 200, 100), 0, 1e-9);
}

}  // namespace
}  // namespace noria::perf
