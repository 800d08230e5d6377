// The monotonic clock in nanoseconds, common to all processes of a host (CLOCK_MONOTONIC).
//
// now_ns() is a vDSO call of about 20 ns; it never enters the kernel.
//
// Threads: any thread.
#pragma once

#include <time.h>

#include <cstdint>
#include <limits>

namespace noria {

using Nanoseconds = int64_t;  // a duration, or a point on the monotonic clock

constexpr Nanoseconds operator""_us(unsigned long long n) { return static_cast<int64_t>(n) * 1000; }
constexpr Nanoseconds operator""_ms(unsigned long long n) {
  return static_cast<int64_t>(n) * 1'000'000;
}
constexpr Nanoseconds operator""_s(unsigned long long n) {
  return static_cast<int64_t>(n) * 1'000'000'000;
}

constexpr Nanoseconds kNever = std::numeric_limits<Nanoseconds>::max();

inline Nanoseconds now_ns() {
  timespec ts;
  clock_gettime(CLOCK_MONOTONIC, &ts);
  return static_cast<Nanoseconds>(ts.tv_sec) * 1'000'000'000 + ts.tv_nsec;
}

}  // namespace noria
