// Byte units and the integer arithmetic that goes with sizes.
//
// Everything here is constexpr and costs nothing.
//
// Threads: any thread.
#pragma once

#include <concepts>
#include <cstdint>

namespace noria {

constexpr uint64_t operator""_KiB(unsigned long long n) { return n << 10; }
constexpr uint64_t operator""_MiB(unsigned long long n) { return n << 20; }
constexpr uint64_t operator""_GiB(unsigned long long n) { return n << 30; }

template <std::unsigned_integral T>
constexpr T div_up(T value, T divisor) {
  return static_cast<T>(value / divisor + (value % divisor != 0 ? 1 : 0));
}

template <std::unsigned_integral T>
constexpr bool is_pow2(T value) {
  return value != 0 && (value & (value - 1)) == 0;
}

// Rounds up to a multiple of `alignment`, which must be a power of two.
template <std::unsigned_integral T>
constexpr T align_up(T value, T alignment) {
  return static_cast<T>((value + alignment - 1) & ~(alignment - 1));
}

}  // namespace noria
