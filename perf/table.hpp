// The table of nccl-tests: header, rows and footer, character for character as its parsers read
// them.
//
// Pure: everything returns text.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace noria::perf {

// One half of a row: out of place or in place.
struct Measurement {
  double time_us = 0;
  double algbw = 0;  // GB/s, GB = 10^9 bytes
  double busbw = 0;
  std::optional<uint64_t> wrong;  // absent: not checked
  double p50_us = 0, p99_us = 0,
         max_us = 0;        // of single calls; 0 where calls were not timed singly
  double cpu_s_per_gb = 0;  // all ranks and threads, per GB of size
};

struct Row {
  uint64_t bytes = 0;
  uint64_t count = 0;
  std::string type;
  std::string op;
  int root = -1;
  Measurement out_of_place;
  Measurement in_place;
};

std::string table_header();
std::string table_row(const Row& row);

// Over all rows: elements that were wrong, and the mean of all bus bandwidths.
uint64_t wrong_elements(const std::vector<Row>& rows);
double average_bus_bandwidth(const std::vector<Row>& rows);
std::string table_footer(const std::vector<Row>& rows);

// As comments, what nccl-tests has no columns for: percentiles and CPU time.
std::string details_table(const std::vector<Row>& rows);

// A number in `width` characters with at most two decimals, fewer where the number is large.
std::string fitted(double value, int width);

}  // namespace noria::perf
