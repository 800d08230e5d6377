// When each gradient of a trace is ready, and what that means for a step.
//
// Pure functions.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "perf/trace.hpp"

namespace noria::perf {

struct ReadyTimes {
  std::vector<uint32_t> order;   // indices of tensors as they complete
  std::vector<double> ready_ms;  // by index of tensor; does not fall along `order`
  double backward_ms = 0;        // when the last one completes
};

// The trace's own times, scaled so that the last is backward_ms where that is given. Else times
// proportional to numel + 2000, one tensor after the other in order of arrival; embeddings weigh
// nothing. Arrival that is not given is reverse registration with the embeddings last.
ReadyTimes ready_times(const Trace& trace, std::optional<double> backward_ms);

// Microseconds by tensor, as the planner takes them; what is beyond them, 71 minutes, is the last.
std::vector<uint32_t> ready_us(const ReadyTimes& times);

// The tensors that become ready last, together, under the trace's name: nothing hides what they
// take.
Trace tail_of(const Trace& trace, const ReadyTimes& times);

// A bucket as the simulation below sees it: when its last tensor is ready, and how long it takes.
struct FullBucket {
  double ready_ms = 0;
  double wire_ms = 0;
};

// The step's end if buckets start only when full, one after the other in this order.
double step_of_full_buckets(std::span<const FullBucket> buckets);

}  // namespace noria::perf
