// What nccl-tests left in a file, as text or JSON, on its way to a table of the tuner's.
#include "base/units.hpp"
#include "perf/exit_codes.hpp"
#include "perf/nccl_json_log.hpp"
#include "perf/scaled_curves.hpp"
#include "perf/tuner_rows.hpp"
#include "tests/fuzz/input.hpp"

namespace {

using namespace noria::perf;

// Cuts are tried among all sizes, so the work grows with their square.
constexpr size_t kMostTimes = 80;

size_t times_of(const Measured& measured) {
  size_t times = 0;
  for (const Curve& curve : measured.curves) times += curve.times.size();
  return times;
}

void check_table(std::string_view text) {
  const Assumed assumed{.nodes = 2,
                        .ranks_per_node = 8,
                        .algorithm = noria::plugin::tuner::Algorithm::ring,
                        .protocol = noria::plugin::tuner::Protocol::simple};
  Measured measured = read_curves({{"a.log", parse_nccl_log(text, "a.log")}}, assumed);
  if (times_of(measured) > kMostTimes) return;
  Measured scaled;
  scaled.curves = scaled_curves(measured.curves, {.most_nodes = 16}, {.nics = 8, .link_gbit = 400});
  std::vector<FittedCurve> fitted = fit_curves(&measured);
  for (FittedCurve& curve : fit_curves(&scaled)) fitted.push_back(std::move(curve));
  const auto rows = rows_of(fitted, {});
  const auto table =
      noria::plugin::tuner::parse_table(table_text(fitted, rows, 0.05), "a table that was fitted");
  NORIA_CHECK(table.is_ok(), "what is fitted is a table");
  NORIA_CHECK(table->rows.size() == rows.size(), "with all its rows");
  for (const auto& row : table->rows)
    NORIA_CHECK(row.is_predicted && row.fixed_us >= 0 && row.us_per_mib >= 0,
                "no time is negative");
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    check_table({reinterpret_cast<const char*>(data), size});
  } catch (const ToolError& error) {
    NORIA_CHECK(noria::fuzz::is_one_line(error.what()), "a refusal is one line");
  }
  return 0;
}
