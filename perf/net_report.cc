#include "perf/net_report.hpp"

#include <cmath>

#include "base/units.hpp"
#include "perf/format_text.hpp"
#include "perf/stats.hpp"

namespace noria::perf {
namespace {

double gigabytes_a_second(const RateRow& row, double rate) {
  return rate * static_cast<double>(row.bytes) * 1e-9;
}

unsigned long long wide(uint64_t value) { return value; }

}  // namespace

std::string rate_header(RateUnit unit) {
  const char* const name = unit == RateUnit::gigabits ? "Gb/sec" : "MB/sec";
  return format_text(" %-10s %-13s %-18s %-20s %s\n", "#bytes", "#iterations",
                     format_text("BW peak[%s]", name).c_str(),
                     format_text("BW average[%s]", name).c_str(), "MsgRate[Mpps]");
}

std::string rate_text(const RateRow& row, RateUnit unit) {
  const double one = unit == RateUnit::gigabits ? 1e9 / 8 : 1_MiB;  // in bytes
  const auto bytes = static_cast<double>(row.bytes);
  return format_text(" %-10llu %-13llu %-18.2f %-20.2f %.6f\n", wide(row.bytes), wide(row.messages),
                     row.peak * bytes / one, row.average * bytes / one, row.average * 1e-6);
}

nlohmann::ordered_json rate_json(const RateRow& row) {
  return {{"bytes", row.bytes},
          {"iterations", row.messages},
          {"peak_gbytes_per_s", gigabytes_a_second(row, row.peak)},
          {"average_gbytes_per_s", gigabytes_a_second(row, row.average)},
          {"messages_per_s", row.average}};
}

LatencyRow latency_row(uint64_t bytes, const std::vector<double>& one_way_us) {
  LatencyRow row{.bytes = bytes, .messages = one_way_us.size()};
  row.least = percentile(one_way_us, 0);
  row.most = largest(one_way_us);
  row.typical = median(one_way_us);
  row.average = mean(one_way_us);
  double squares = 0;
  for (const double value : one_way_us) squares += (value - row.average) * (value - row.average);
  if (!one_way_us.empty())
    row.deviation = std::sqrt(squares / static_cast<double>(one_way_us.size()));
  row.p99 = percentile(one_way_us, 99);
  row.p999 = percentile(one_way_us, 99.9);
  return row;
}

std::string latency_header() {
  return format_text(" %-10s %-13s %-13s %-13s %-16s %-13s %-15s %-21s %s\n", "#bytes",
                     "#iterations", "t_min[usec]", "t_max[usec]", "t_typical[usec]", "t_avg[usec]",
                     "t_stdev[usec]", "99% percentile[usec]", "99.9% percentile[usec]");
}

std::string latency_text(const LatencyRow& row) {
  return format_text(" %-10llu %-13llu %-13.2f %-13.2f %-16.2f %-13.2f %-15.2f %-21.2f %.2f\n",
                     wide(row.bytes), wide(row.messages), row.least, row.most, row.typical,
                     row.average, row.deviation, row.p99, row.p999);
}

nlohmann::ordered_json latency_json(const LatencyRow& row) {
  return {{"bytes", row.bytes},          {"iterations", row.messages},  {"t_min_us", row.least},
          {"t_max_us", row.most},        {"t_typical_us", row.typical}, {"t_avg_us", row.average},
          {"t_stdev_us", row.deviation}, {"t_p99_us", row.p99},         {"t_p999_us", row.p999}};
}

}  // namespace noria::perf
