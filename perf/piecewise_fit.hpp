// Times by size, as straight lines one behind the other: what a table of the tuner can say.
//
// One line is alpha + bytes / beta; a collective has several, for a protocol's buffers, the chunks
// and the caches change with size. Each line is fitted by relative error (so that 20 us and 20 ms
// weigh the same), robustly (an outlier of twice the time pulls no more than one of a fifth), and
// with neither part below zero. How many lines, and where they meet, is found over all cuts: a line
// more has to pay for itself.
//
// Costs, for n sizes: n squared fits of a line. Pure.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace noria::perf {

struct TimedSize {
  uint64_t bytes = 0;
  double us = 0;  // above zero
};

struct Line {
  double fixed_us = 0;
  double us_per_byte = 0;

  double us(uint64_t bytes) const { return fixed_us + us_per_byte * static_cast<double>(bytes); }
};

// Holds from its first byte to below the next one's.
struct LinePiece {
  uint64_t first_byte = 0;
  Line line;
};

// In order of size; the first begins at 0, the last has no end. Of sizes in any order, with any
// number of times each; empty where there are fewer than two sizes.
std::vector<LinePiece> fit_pieces(std::vector<TimedSize> times);

const Line& line_at(const std::vector<LinePiece>& pieces, uint64_t bytes);

// |predicted - measured| / measured of each size, where each size has been left out in turn of what
// is fitted. Measured is the geometric mean of a size's times. Empty below three sizes.
std::vector<double> left_out_errors(const std::vector<TimedSize>& times);
// The same of what is fitted to all of them: the residuals.
std::vector<double> errors_of(const std::vector<LinePiece>& pieces,
                              const std::vector<TimedSize>& times);

// One time a size, the geometric mean of all there are, in order of size.
std::vector<TimedSize> means_of(std::vector<TimedSize> times);

}  // namespace noria::perf
