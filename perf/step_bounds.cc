#include "perf/step_bounds.hpp"

#include <algorithm>
#include <vector>

#include "perf/elements.hpp"

namespace noria::perf {

namespace {

double wire_ms(const Trace& trace, uint64_t bytes, double flat_ms) {
  return flat_ms * static_cast<double>(bytes) /
         static_cast<double>(std::max<uint64_t>(trace.bytes(), 1));
}

}  // namespace

double full_buckets_step_ms(const Trace& trace, const ReadyTimes& times,
                            const bucketing::Plan& plan, double flat_ms) {
  std::vector<FullBucket> full;
  for (const bucketing::Bucket& bucket : plan.buckets) {
    FullBucket b{.wire_ms = wire_ms(trace, bucket.bytes, flat_ms)};
    for (const uint32_t tensor : bucket.tensors)
      b.ready_ms = std::max(b.ready_ms, times.ready_ms[tensor]);
    full.push_back(b);
  }
  return step_of_full_buckets(full);
}

// In another order it would end no sooner.
double least_step_ms(const Trace& trace, const ReadyTimes& times, double flat_ms) {
  std::vector<FullBucket> tensors;
  for (const uint32_t index : times.order) {
    const TraceTensor& tensor = trace.tensors[index];
    tensors.push_back(
        {.ready_ms = times.ready_ms[index],
         .wire_ms = wire_ms(trace, tensor.numel * dtype_row(tensor.dtype).bytes, flat_ms)});
  }
  return step_of_full_buckets(tensors);
}

}  // namespace noria::perf
