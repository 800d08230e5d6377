// The two 16-bit floats as bit patterns, for tools that must not trust the library's own kernels.
//
// To float is exact. From float rounds to nearest, ties to even; too large becomes infinite.
//
// Threads: any thread.
#pragma once

#include <bit>
#include <cstdint>

namespace noria::perf {

struct Bfloat16 {
  uint16_t bits = 0;
};
struct Float16 {
  uint16_t bits = 0;
};

constexpr float to_float(Bfloat16 value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value.bits) << 16);
}

constexpr Bfloat16 to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7fffffffU) > 0x7f800000U) return {static_cast<uint16_t>((bits >> 16) | 0x40U)};
  const uint32_t to_even = 0x7fffU + ((bits >> 16) & 1U);
  return {static_cast<uint16_t>((bits + to_even) >> 16)};
}

constexpr float to_float(Float16 value) {
  const uint32_t sign = static_cast<uint32_t>(value.bits & 0x8000U) << 16;
  const uint32_t exponent = (value.bits >> 10) & 0x1fU;
  const uint32_t fraction = value.bits & 0x3ffU;
  if (exponent == 0) {  // zero and subnormals: multiples of 2^-24
    const float magnitude = static_cast<float>(fraction) * 0x1p-24F;
    return sign != 0 ? -magnitude : magnitude;
  }
  const uint32_t wide = exponent == 31 ? 255U : exponent + 112U;  // the biases are 15 and 127
  return std::bit_cast<float>(sign | (wide << 23) | (fraction << 13));
}

constexpr Float16 to_float16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000U);
  const uint32_t magnitude = bits & 0x7fffffffU;
  if (magnitude > 0x7f800000U) return {static_cast<uint16_t>(sign | 0x7e00U)};
  if (magnitude >= 0x477ff000U) return {static_cast<uint16_t>(sign | 0x7c00U)};  // from 65520 on
  if (magnitude < 0x38800000U) {
    // Below 2^-14: adding 0.5 puts the unit of 2^-24 at the end of a float's significand, and the
    // addition rounds as asked.
    const float shifted = std::bit_cast<float>(magnitude) + 0.5F;
    return {static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000U))};
  }
  const uint32_t to_even = 0xfffU + ((magnitude >> 13) & 1U);
  return {static_cast<uint16_t>(sign | ((magnitude - 0x38000000U + to_even) >> 13))};
}

}  // namespace noria::perf
