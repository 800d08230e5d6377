#include "bucketing/step_times.hpp"

#include <algorithm>

namespace noria::bucketing {

noria_step_info step_info(uint64_t step, Nanoseconds begun, Nanoseconds ended,
                          std::span<const noria_bucket_info> buckets) {
  noria_step_info info{.struct_size = sizeof(noria_step_info),
                       .buckets = static_cast<uint32_t>(buckets.size()),
                       .step = step,
                       .begin_ns = begun,
                       .end_ns = ended};
  Nanoseconds last_gradient = begun;
  Nanoseconds last_done = 0, others_done = 0;  // the bucket that was done last, and all others
  for (const noria_bucket_info& bucket : buckets) {
    info.bytes += bucket.bytes;
    info.communication_ns += bucket.wire_ns;
    last_gradient = std::max(last_gradient, bucket.ready_ns);
    others_done = std::max(others_done, std::min(last_done, bucket.end_ns));
    last_done = std::max(last_done, bucket.end_ns);
  }
  last_done = std::max(last_done, last_gradient);
  others_done = std::max(others_done, last_gradient);
  info.last_gradient_ns = last_gradient;
  info.compute_ns = last_gradient - begun;
  info.exposed_ns = ended - last_gradient;
  info.backlog_ns = others_done - last_gradient;
  info.tail_ns = last_done - others_done;
  info.finish_ns = ended - last_done;
  return info;
}

}  // namespace noria::bucketing
