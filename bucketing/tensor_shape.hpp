// How a framework sees a tensor that it registers: it must be one piece of memory, row by row.
//
// Pure. Threads: any thread.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "bucketing/failure.hpp"

namespace noria::bucketing {

// ARG, naming the tensor, where dimensions are negative, do not multiply to `numel`, or have
// strides that leave gaps or another order of elements. `strides` empty: as it should be. What has
// no elements may have any.
Outcome<Ok> check_shape(const std::string& name, uint64_t numel, std::span<const int64_t> shape,
                        std::span<const int64_t> strides);

}  // namespace noria::bucketing
