// What net_perf prints: perftest's columns, and JSON.
//
// Pure: numbers in, text out. In the table MB is 2^20 bytes, which is what perftest means by it,
// and Gb 10^9 bits; in JSON GB is 10^9 bytes, as of all tools here.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace noria::perf {

// Messages a second of one size, both directions together where both were measured.
struct RateRow {
  uint64_t bytes = 0;
  uint64_t messages = 0;
  double peak = 0;  // of the fastest stretch; 0: too few for one
  double average = 0;
};
enum class RateUnit { megabytes, gigabits };

std::string rate_header(RateUnit unit);
std::string rate_text(const RateRow& row, RateUnit unit);
nlohmann::ordered_json rate_json(const RateRow& row);

// Microseconds one way: half a round trip.
struct LatencyRow {
  uint64_t bytes = 0;
  uint64_t messages = 0;
  double least = 0, most = 0, typical = 0, average = 0, deviation = 0, p99 = 0, p999 = 0;
};

LatencyRow latency_row(uint64_t bytes, const std::vector<double>& one_way_us);
std::string latency_header();
std::string latency_text(const LatencyRow& row);
nlohmann::ordered_json latency_json(const LatencyRow& row);

}  // namespace noria::perf
