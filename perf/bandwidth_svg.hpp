// A picture of bus bandwidth by size, as SVG: one file that needs nothing beside it.
//
// Sizes on a logarithmic axis, GB/s on a straight one from 0. What was measured is dots, what is
// modelled a line of the same colour. From the eighth series on colours repeat, lines are dashed
// and dots are rings. A legend names each. Names are escaped. Pure.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace noria::perf {

struct BandwidthPoint {
  uint64_t bytes = 0;  // above 0
  double gb_per_s = 0;
};

struct BandwidthSeries {
  std::string name;
  std::vector<BandwidthPoint> measured;
  std::vector<BandwidthPoint> modelled;  // in order of size
};

// At least one point in all.
std::string bandwidth_svg(const std::string& title, const std::vector<BandwidthSeries>& series);

}  // namespace noria::perf
