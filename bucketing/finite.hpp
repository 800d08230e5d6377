// Whether numbers are finite: neither infinite nor not a number.
//
// One pass over the memory, at the speed at which it comes. Integers always are.
//
// Threads: any thread.
#pragma once

#include <noria/bucketing.h>

#include <cstddef>
#include <cstdint>

namespace noria::bucketing {

bool is_finite(noria_dtype dtype, const std::byte* values, uint64_t count);

}  // namespace noria::bucketing
