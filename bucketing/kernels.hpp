// The arithmetic of reductions, vectorised with run-time dispatch (Highway).
//
// f16 and bf16 are widened to f32 for each operation and rounded to nearest even. Integers wrap.
// MAX and MIN hand on a NaN of either side: a gradient that went bad must not vanish in a maximum.
// Sizes are elements. Any alignment works; `out` may be one of the inputs, otherwise no overlap.
//
// Threads: any thread.
#pragma once

#include <noria/bucketing.h>

#include <cstddef>
#include <cstdint>

#include "base/check.hpp"

namespace noria::bucketing {

constexpr uint32_t dtype_bytes(noria_dtype dtype) {
  switch (dtype) {
    case NORIA_INT8:
    case NORIA_UINT8: return 1;
    case NORIA_FLOAT16:
    case NORIA_BFLOAT16: return 2;
    case NORIA_INT32:
    case NORIA_UINT32:
    case NORIA_FLOAT32: return 4;
    case NORIA_INT64:
    case NORIA_UINT64:
    case NORIA_FLOAT64: return 8;
    default: return 0;  // not a dtype
  }
}
const char* dtype_name(noria_dtype dtype);  // "float32"
const char* op_name(noria_op op);           // "sum"
bool is_reducible(noria_dtype dtype);
bool is_integer(noria_dtype dtype);

// out[i] = a[i] op b[i]. AVG adds: its last addition is add_divide(). The dtype is reducible.
NORIA_HOT void reduce(noria_dtype dtype, noria_op op, void* out, const void* a, const void* b,
                      uint64_t count);
// out[i] = (a[i] + b[i]) / divisor in one pass; floating-point dtypes only.
NORIA_HOT void add_divide(noria_dtype dtype, void* out, const void* a, const void* b,
                          uint64_t count, uint32_t divisor);

// What two addends and their sum are divided by. A division by a power of two is exact; others are
// rounded to float, or double, once each.
struct Divisors {
  float a = 1, b = 1, sum = 1;
};
// out[i] = (a[i] / a + b[i] / b) / sum; floating-point dtypes only.
NORIA_HOT void add_scaled(noria_dtype dtype, void* out, const void* a, const void* b,
                          uint64_t count, const Divisors& divisors);

// The same of float32 that travels as `narrow`, which is float16 or bfloat16: b is this rank's own,
// a came and out goes on.
NORIA_HOT void add_narrow(noria_dtype narrow, void* out, const void* a, const float* b,
                          uint64_t count, const Divisors& divisors);
// out[i] = in[i] / divisor, rounded to `narrow`; and back.
NORIA_HOT void to_narrow(noria_dtype narrow, void* out, const float* in, uint64_t count,
                         float divisor);
NORIA_HOT void from_narrow(noria_dtype narrow, float* out, const void* in, uint64_t count);

}  // namespace noria::bucketing
