// LinkCurve: what a transfer over a link costs, as a fixed part and a rate.
//
// Two points measured are enough to tell them apart: the time of a small transfer, and of a large
// one. Pure functions; times in microseconds.
//
// Threads: a value.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

namespace noria {

struct LinkCurve {
  double alpha_us = 0;      // of any transfer, however small
  double bytes_per_us = 0;  // 0: bytes cost nothing

  double us(uint64_t bytes) const {
    return alpha_us + (bytes_per_us > 0 ? static_cast<double>(bytes) / bytes_per_us : 0);
  }
};

struct LinkPoint {
  uint64_t bytes = 0;
  double us = 0;
};

// The line through both. Neither part is ever negative: where the larger transfer was no slower,
// which noise can do, or where both have the same size, all of it is fixed cost; where the line
// meets no bytes below no time, all of it is rate.
constexpr LinkCurve fit_link_curve(LinkPoint a, LinkPoint b) {
  if (a.bytes > b.bytes) std::swap(a, b);
  if (a.bytes == b.bytes || b.us <= a.us) return {.alpha_us = std::max(std::min(a.us, b.us), 0.0)};
  const double rate = static_cast<double>(b.bytes - a.bytes) / (b.us - a.us);
  const double alpha = a.us - static_cast<double>(a.bytes) / rate;
  if (alpha >= 0) return {.alpha_us = alpha, .bytes_per_us = rate};
  return {.bytes_per_us = static_cast<double>(b.bytes) / b.us};
}

}  // namespace noria
