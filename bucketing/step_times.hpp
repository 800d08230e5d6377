// Where a step's time went, from when its gradients were given and its buckets done.
//
// Pure.
//
// Threads: any thread.
#pragma once

#include <noria/observe.h>

#include <span>

#include "base/clock.hpp"

namespace noria::bucketing {

// begin + compute + exposed = end, and backlog + tail + finish = exposed. `buckets` have the times
// of this step; one without bytes has none and counts for nothing.
noria_step_info step_info(uint64_t step, Nanoseconds begun, Nanoseconds ended,
                          std::span<const noria_bucket_info> buckets);

}  // namespace noria::bucketing
