// Median, percentiles and the like of a list of measurements.
//
// Percentiles are by nearest rank: always one of the measurements, never between two.
//
// Threads: any thread.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <vector>

namespace noria::perf {

// 0 for an empty list.
inline double percentile(std::vector<double> values, double percent) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const auto rank = std::ceil(percent * static_cast<double>(values.size()) / 100);
  return values[static_cast<size_t>(std::max(rank, 1.0)) - 1];
}

inline double median(const std::vector<double>& values) { return percentile(values, 50); }

inline double mean(const std::vector<double>& values) {
  double sum = 0;
  for (const double value : values) sum += value;
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

inline double largest(const std::vector<double>& values) {
  return values.empty() ? 0 : *std::max_element(values.begin(), values.end());
}

}  // namespace noria::perf
