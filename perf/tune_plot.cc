// noria_tune plot: bus bandwidth by size, measured and modelled.

#include <cmath>
#include <cstdio>

#include "perf/bandwidth_svg.hpp"
#include "perf/command_line.hpp"
#include "perf/nccl_tests_json.hpp"
#include "perf/tune_commands.hpp"
#include "perf/tune_logs.hpp"

namespace noria::perf {
namespace {

constexpr const char* kHelp =
    "Draws bus bandwidth by size as SVG: dots are what nccl-tests measured, lines what noria_tune "
    "fit makes of it.\n"
    "  noria_tune plot ring.log tree.log -o ring-tree.svg\n"
    "Exit: 0 all right, 2 usage, or a log that is not to be trusted.";

// A line of so many points an octave looks as smooth as it is.
constexpr double kPointsAnOctave = 8;

BandwidthSeries series_of(const Curve& curve, const std::vector<LinePiece>& pieces) {
  BandwidthSeries series{.name = text_of(curve.key)};
  const std::vector<TimedSize> means = means_of(curve.times);
  for (const TimedSize& mean : means)
    series.measured.push_back({mean.bytes, bus_gbs(curve.key, mean.bytes, mean.us)});
  if (pieces.empty()) return series;
  const double first = std::log2(static_cast<double>(means.front().bytes));
  const double last = std::log2(static_cast<double>(means.back().bytes));
  const auto steps = static_cast<int>(std::ceil((last - first) * kPointsAnOctave));
  for (int i = 0; i <= steps; ++i) {
    const auto bytes = static_cast<uint64_t>(std::exp2(first + (last - first) * i / steps));
    const double us = line_at(pieces, bytes).us(bytes);
    series.modelled.push_back({bytes, us > 0 ? bus_gbs(curve.key, bytes, us) : 0});
  }
  return series;
}

}  // namespace

int tune_plot(int argc, char** argv) {
  LogFlags flags;
  std::string out, title = "Bus bandwidth, measured (dots) and modelled (lines)";
  CLI::App app(kHelp, "noria_tune plot");
  add_log_flags(app, flags);
  app.add_option("-o,--out", out, "the SVG to write")->required()->check(file_name());
  app.add_option("--title", title, "above the picture");
  if (parse_command_line(app, argc, argv)) return 0;

  const Measured measured = measured_of(flags);
  tell_left_out(measured);
  std::vector<BandwidthSeries> series;
  for (const Curve& curve : measured.curves)
    series.push_back(series_of(curve, fit_pieces(curve.times)));
  write_file(out, bandwidth_svg(title, series));
  std::printf("%s: %zu curves\n", printable(out).c_str(), series.size());
  return 0;
}

}  // namespace noria::perf
