// Elements of any reducible dtype as doubles, for tests that do not care which dtype it is.
//
// f16 and bf16 hold only what is exact in them: multiples of 1/8 below 16.
//
// Threads: any thread.
#pragma once

#include <noria/bucketing.h>

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace noria::test {

// Normal numbers and zero.
inline uint16_t to_float16(double value) {
  if (value == 0) return 0;
  int exponent = 0;
  const double fraction = std::frexp(std::fabs(value), &exponent);  // in [0.5, 1)
  const auto mantissa = static_cast<uint16_t>(std::lround((fraction * 2 - 1) * 1024));
  return static_cast<uint16_t>((value < 0 ? 0x8000 : 0) | ((exponent - 1 + 15) << 10) | mantissa);
}
inline double from_float16(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, mantissa = bits & 1023;
  const double value =
      exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
  return (bits & 0x8000) != 0 ? -value : value;
}

template <class T>
T load(const void* array, uint64_t index) {
  T value;
  std::memcpy(&value, static_cast<const char*>(array) + index * sizeof value, sizeof value);
  return value;
}
template <class T>
void store(void* array, uint64_t index, T value) {
  std::memcpy(static_cast<char*>(array) + index * sizeof value, &value, sizeof value);
}

inline double element(noria_dtype dtype, const void* array, uint64_t index) {
  switch (dtype) {
    case NORIA_FLOAT64: return load<double>(array, index);
    case NORIA_FLOAT16: return from_float16(load<uint16_t>(array, index));
    case NORIA_BFLOAT16:
      return std::bit_cast<float>(static_cast<uint32_t>(load<uint16_t>(array, index)) << 16);
    case NORIA_INT32: return load<int32_t>(array, index);
    case NORIA_INT64: return static_cast<double>(load<int64_t>(array, index));
    default: return static_cast<double>(load<float>(array, index));
  }
}

inline void set_element(noria_dtype dtype, void* array, uint64_t index, double value) {
  switch (dtype) {
    case NORIA_FLOAT64: store(array, index, value); break;
    case NORIA_FLOAT16: store(array, index, to_float16(value)); break;
    case NORIA_BFLOAT16:
      store(array, index,
            static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16));
      break;
    case NORIA_INT32: store(array, index, static_cast<int32_t>(value)); break;
    case NORIA_INT64: store(array, index, static_cast<int64_t>(value)); break;
    default: store(array, index, static_cast<float>(value)); break;
  }
}

// The distance between 1 and the next value.
inline double epsilon_of(noria_dtype dtype) {
  switch (dtype) {
    case NORIA_FLOAT64: return std::ldexp(1, -52);
    case NORIA_FLOAT16: return std::ldexp(1, -10);
    case NORIA_BFLOAT16: return std::ldexp(1, -7);
    case NORIA_FLOAT32: return std::ldexp(1, -23);
    default: return 0;  // integers are exact
  }
}

}  // namespace noria::test
