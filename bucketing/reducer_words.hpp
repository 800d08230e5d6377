// How a reducer refuses a call, in words.
//
// Threads: any thread.
#pragma once

#include <cstdint>

#include "base/check.hpp"
#include "bucketing/failure.hpp"
#include "bucketing/readiness.hpp"
#include "bucketing/tensor_table.hpp"

namespace noria::bucketing {

NORIA_COLD Failure no_step_open(const char* call);
NORIA_COLD Failure unknown_id(uint32_t id, const TensorTable& tensors);
NORIA_COLD Failure wrong_pointer(uint32_t id, const TensorTable& tensors, bool has_views);
// A call too many of the open step, or one after the tensor was declared unused. `is_learned`: how
// often it comes was seen in the first step of a static graph.
NORIA_COLD Failure came_late(uint32_t id, const TensorTable& tensors, const Readiness& step,
                             bool is_learned);
// While a result was waited for. What holds up its bucket may come with the end only.
NORIA_COLD Failure ended_meanwhile(uint32_t id, const TensorTable& tensors);

}  // namespace noria::bucketing
