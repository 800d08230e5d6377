#include "perf/table.hpp"

#include "perf/format_text.hpp"

namespace noria::perf {
namespace {

std::string half_row(const Measurement& m) {
  const std::string wrong = m.wrong ? std::to_string(*m.wrong) : "N/A";
  return format_text("  %s  %s  %s  %6s", fitted(m.time_us, 7).c_str(), fitted(m.algbw, 6).c_str(),
                     fitted(m.busbw, 6).c_str(), wrong.c_str());
}

std::string details_row(const Row& row, const char* place, const Measurement& m) {
  return format_text("# %12llu  %8s  %6s  %12s  %9.2f  %9.2f  %9.2f  %9.3f\n",
                     static_cast<unsigned long long>(row.bytes), row.type.c_str(), row.op.c_str(),
                     place, m.p50_us, m.p99_us, m.max_us, m.cpu_s_per_gb);
}

}  // namespace

std::string fitted(double value, int width) {
  int digits = 0;
  for (double limit = 1; value >= limit && digits < 20; limit *= 10) ++digits;
  const int decimals = digits < width - 2 ? 2 : digits < width - 1 ? 1 : 0;
  return format_text("%*.*f", width, decimals, value);
}

std::string table_header() {
  return "#                                                              out-of-place              "
         "         in-place          \n"
         "#       size         count      type   redop    root     time   algbw   busbw  #wrong    "
         " time   algbw   busbw  #wrong \n"
         "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            "
         " (us)  (GB/s)  (GB/s)         \n";
}

std::string table_row(const Row& row) {
  return format_text("%12llu  %12llu  %8s  %6s  %6d", static_cast<unsigned long long>(row.bytes),
                     static_cast<unsigned long long>(row.count), row.type.c_str(), row.op.c_str(),
                     row.root) +
         half_row(row.out_of_place) + half_row(row.in_place) + "\n";
}

uint64_t wrong_elements(const std::vector<Row>& rows) {
  uint64_t wrong = 0;
  for (const Row& row : rows)
    wrong += row.out_of_place.wrong.value_or(0) + row.in_place.wrong.value_or(0);
  return wrong;
}

double average_bus_bandwidth(const std::vector<Row>& rows) {
  double sum = 0;
  for (const Row& row : rows) sum += row.out_of_place.busbw + row.in_place.busbw;
  return rows.empty() ? 0 : sum / static_cast<double>(2 * rows.size());
}

std::string table_footer(const std::vector<Row>& rows) {
  const uint64_t wrong = wrong_elements(rows);
  return format_text("# Out of bounds values : %llu %s\n# Avg bus bandwidth    : %g \n#\n",
                     static_cast<unsigned long long>(wrong), wrong == 0 ? "OK" : "FAILED",
                     average_bus_bandwidth(rows));
}

std::string details_table(const std::vector<Row>& rows) {
  std::string text =
      "# Single calls, slowest rank of each; CPU time of all ranks and threads per GB of size\n"
      "#       size      type   redop         place   p50 (us)   p99 (us)   max (us)  CPU s/GB\n";
  for (const Row& row : rows) {
    text += details_row(row, "out-of-place", row.out_of_place);
    text += details_row(row, "in-place", row.in_place);
  }
  return text + "#\n";
}

}  // namespace noria::perf
