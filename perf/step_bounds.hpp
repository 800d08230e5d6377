// When a step could end at best over a link that was measured, in a model without a clock.
//
// A transfer takes the share of `flat_ms`, one all-reduce of everything, that its bytes have of all
// bytes.
//
// Threads: any thread.
#pragma once

#include "bucketing/plan.hpp"
#include "perf/ready_times.hpp"
#include "perf/trace.hpp"

namespace noria::perf {

// Of buckets that start only when full.
double full_buckets_step_ms(const Trace& trace, const ReadyTimes& times,
                            const bucketing::Plan& plan, double flat_ms);

// Of any order of sending: each tensor goes when it is ready, and the link never rests while
// something is.
double least_step_ms(const Trace& trace, const ReadyTimes& times, double flat_ms);

}  // namespace noria::perf
