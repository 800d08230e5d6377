#include "perf/piecewise_fit.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>

namespace noria::perf {
namespace {

// What two runs of one measurement differ by: public logs repeat within 1 to 4 %
// (016 and 019 of the corpus differ by 3 % in the median).
constexpr double kNoise = 0.03;
// A line has two parameters and a place to begin; each has to explain as much as a size that is off
// by twice the noise.
constexpr double kPriceOfLine = 6;
// Of a line: two sizes are always met. But where each was timed twice, that they are off the line
// of the others is no outlier: a change of algorithm may stand for one octave.
constexpr size_t kFewestSizes = 3, kFewestTimes = 4;
constexpr int kRounds = 6;  // of reweighting; what moves after that is below the noise

// Huber's loss of an error in units of the noise.
double loss_of(double relative_error) {
  const double units = std::abs(relative_error) / kNoise;
  return units <= 1 ? units * units : 2 * units - 1;
}

struct Fitted {
  Line line;
  double loss = 0;
};

// The least weighted squares of (fixed + slope * x - t) / t.
Line solve(std::span<const TimedSize> times, const std::vector<double>& weights) {
  double aa = 0, ab = 0, bb = 0, a = 0, b = 0;
  for (size_t i = 0; i < times.size(); ++i) {
    const double unit = 1 / times[i].us, slope = static_cast<double>(times[i].bytes) / times[i].us;
    aa += weights[i] * unit * unit;
    ab += weights[i] * unit * slope;
    bb += weights[i] * slope * slope;
    a += weights[i] * unit;
    b += weights[i] * slope;
  }
  const double determinant = aa * bb - ab * ab;
  Line line{.fixed_us = a / aa};  // of one size alone
  if (determinant > 1e-12 * aa * bb)
    line = {(a * bb - b * ab) / determinant, (b * aa - a * ab) / determinant};
  if (line.us_per_byte < 0) line = {.fixed_us = a / aa};
  if (line.fixed_us < 0) line = {.us_per_byte = b / bb};
  return line;
}

Fitted fit_line(std::span<const TimedSize> times) {
  std::vector<double> weights(times.size(), 1);
  Fitted fitted;
  const auto error_of = [&](const TimedSize& time) {
    return (fitted.line.us(time.bytes) - time.us) / time.us;
  };
  for (int round = 0; round < kRounds; ++round) {
    fitted.line = solve(times, weights);
    for (size_t i = 0; i < times.size(); ++i)
      weights[i] = std::min(1.0, kNoise / std::max(std::abs(error_of(times[i])), 1e-9));
  }
  for (const TimedSize& time : times) fitted.loss += loss_of(error_of(time));
  return fitted;
}

void sort(std::vector<TimedSize>* times) {
  std::sort(times->begin(), times->end(), [](const TimedSize& a, const TimedSize& b) {
    return a.bytes != b.bytes ? a.bytes < b.bytes : a.us < b.us;
  });
}

// Where each size begins among the sorted times, and the end.
std::vector<size_t> begins_of(const std::vector<TimedSize>& times) {
  std::vector<size_t> begins;
  for (size_t i = 0; i < times.size(); ++i)
    if (i == 0 || times[i].bytes != times[i - 1].bytes) begins.push_back(i);
  begins.push_back(times.size());
  return begins;
}

// Between two sizes: where the lines meet, else in the middle of the logarithm.
uint64_t edge_between(const Line& before, const Line& after, uint64_t last, uint64_t first) {
  const double slopes = before.us_per_byte - after.us_per_byte;
  const double meet = (after.fixed_us - before.fixed_us) / slopes;
  const auto low = static_cast<double>(last), high = static_cast<double>(first);
  const double edge =
      std::isfinite(meet) && meet > low && meet < high ? meet : std::sqrt(low * high);
  return std::clamp(static_cast<uint64_t>(edge), last + 1, first);
}

// Relative to what was measured.
double error_at(const std::vector<LinePiece>& pieces, const TimedSize& mean) {
  return std::abs(line_at(pieces, mean.bytes).us(mean.bytes) - mean.us) / mean.us;
}

}  // namespace

std::vector<LinePiece> fit_pieces(std::vector<TimedSize> times) {
  sort(&times);
  const std::vector<size_t> begins = begins_of(times);
  const size_t sizes = begins.size() - 1;
  if (sizes < 2) return {};
  const auto is_enough = [&](size_t from, size_t to) {
    const size_t here = to - from;
    return here >= std::min(kFewestSizes, sizes) ||
           (here == 2 && begins[to] - begins[from] >= kFewestTimes);
  };

  // best[i]: the least loss of the first i sizes, by a last line over the sizes from `from` on.
  struct Best {
    double loss = std::numeric_limits<double>::infinity();
    size_t from = 0;
    Line line;
  };
  std::vector<Best> best(sizes + 1);
  best[0].loss = 0;
  for (size_t to = 2; to <= sizes; ++to) {
    for (size_t from = 0; from + 2 <= to; ++from) {
      if (!std::isfinite(best[from].loss) || !is_enough(from, to)) continue;
      const Fitted fitted =
          fit_line(std::span(times).subspan(begins[from], begins[to] - begins[from]));
      const double loss = best[from].loss + fitted.loss + kPriceOfLine;
      if (loss < best[to].loss) best[to] = {loss, from, fitted.line};
    }
  }

  std::vector<LinePiece> pieces;
  for (size_t to = sizes; to > 0; to = best[to].from) {
    LinePiece piece{.line = best[to].line};
    const size_t from = best[to].from;
    if (from > 0)
      piece.first_byte = edge_between(best[from].line, piece.line, times[begins[from] - 1].bytes,
                                      times[begins[from]].bytes);
    pieces.push_back(piece);
  }
  std::reverse(pieces.begin(), pieces.end());
  return pieces;
}

const Line& line_at(const std::vector<LinePiece>& pieces, uint64_t bytes) {
  size_t at = pieces.size() - 1;
  while (at > 0 && pieces[at].first_byte > bytes) --at;
  return pieces[at].line;
}

std::vector<TimedSize> means_of(std::vector<TimedSize> times) {
  sort(&times);
  const std::vector<size_t> begins = begins_of(times);
  std::vector<TimedSize> means;
  for (size_t size = 0; size + 1 < begins.size(); ++size) {
    double sum = 0;
    for (size_t i = begins[size]; i < begins[size + 1]; ++i) sum += std::log(times[i].us);
    const auto count = static_cast<double>(begins[size + 1] - begins[size]);
    means.push_back({times[begins[size]].bytes, std::exp(sum / count)});
  }
  return means;
}

std::vector<double> errors_of(const std::vector<LinePiece>& pieces,
                              const std::vector<TimedSize>& times) {
  std::vector<double> errors;
  if (pieces.empty()) return errors;
  for (const TimedSize& mean : means_of(times)) errors.push_back(error_at(pieces, mean));
  return errors;
}

std::vector<double> left_out_errors(const std::vector<TimedSize>& times) {
  const std::vector<TimedSize> means = means_of(times);
  std::vector<double> errors;
  if (means.size() < 3) return errors;
  for (const TimedSize& mean : means) {
    std::vector<TimedSize> others;
    for (const TimedSize& time : times)
      if (time.bytes != mean.bytes) others.push_back(time);
    const std::vector<LinePiece> pieces = fit_pieces(std::move(others));
    errors.push_back(error_at(pieces, mean));
  }
  return errors;
}

}  // namespace noria::perf
