// What nccl-tests prints, read back: of every version since 2.13, as logs have it.
//
// Lines may carry mpirun's tags (also within a row), srun's labels, a prefix in brackets, blanks,
// and no '#'; lines of NCCL's log may stand anywhere, also glued to a row that they cut in two or
// three. Columns that a version does not have are absent. A file may hold several tables, one
// behind the other.
//
// Values stay as they were printed, for a reader that compares; numbers are made of them by
// LoggedHalf. Nothing is refused here: perf/log_fault.hpp says why a table is not to be trusted.
//
// Threads: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace noria::perf {

// Out of place, or in place: as printed; empty where the log has none.
struct LoggedHalf {
  std::string time_us, algbw, busbw, wrong;

  bool is_there() const { return !time_us.empty(); }
};

struct LoggedRow {
  uint64_t bytes = 0;
  uint64_t count = 0;
  std::string type, redop, root;  // the last two empty where the log has none
  LoggedHalf out_of_place, in_place;
  // What NCCL chose for it ("RING", "SIMPLE"), where NCCL_DEBUG_SUBSYS=TUNING made it say so.
  std::string algorithm, protocol;
  size_t line = 0;  // of the row's head
};

struct LoggedTable {
  std::string collective;  // "all_reduce"; empty where nothing names it
  std::vector<LoggedRow> rows;
  // Of the lines before it; 0 or empty where they do not say.
  uint64_t ranks = 0;
  uint64_t nodes = 0;
  std::string gpu;           // "NVIDIA H100 80GB HBM3"
  std::string nccl_version;  // "2.22.3"
  // Of NCCL_ALGO and NCCL_PROTO, as they were set: by this run's command, by the heading above it,
  // or by an export before it. Another run's do not count.
  std::string algorithm, protocol;
  bool has_end = false;       // the average was printed
  bool has_two_ends = false;  // and once more, with no run begun between
  size_t line = 0;            // where it begins
};

struct NcclTestsLog {
  std::vector<LoggedTable> tables;
  // Several programs print at once, so that a row's table cannot be known: all stand in one.
  bool is_interleaved = false;
};

NcclTestsLog parse_nccl_tests(std::string_view text);

}  // namespace noria::perf
