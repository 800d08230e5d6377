// What ranks tell the parent of an overlap_perf run, and what the parent makes of it.
//
// Pure: texts in, texts out.
//
// Threads: any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "perf/replay.hpp"
#include "perf/timeline.hpp"

namespace noria::perf {

// One rank's part, as text through a pipe.
struct RankReport {
  std::string device, notice;
  uint32_t reads = 0;  // as noria_comm_info has it
  std::vector<ModeResult> modes;
  std::vector<double> flat_ms;  // calibration
  std::vector<double> tail_ms;  // all-reduces of the tensors that become ready last
};

std::string encode(const RankReport& report);
RankReport decode(const std::string& text);

// The last step of each mode. Modes, whose steps lie seconds apart, are moved together, by the same
// amount on all ranks.
Timeline timeline_of(const ReplayPlan& plan, const std::vector<RankReport>& ranks);

// A mode over all ranks. Per step the slowest rank counts.
struct ModeSummary {
  Mode mode = Mode::sequential;
  double step_ms = 0, step_p99_ms = 0, step_max_ms = 0;  // median, p99, max of the steps
  double communication_ms = 0;                           // median
  double exposed_ms = 0;                                 // step - backward
  double efficiency = 0;                                 // backward / step
  double bus_gb_s = 0;
  double cpu_s_per_gb = 0;
  double seal_ms = 0;  // of a reducer
  uint64_t wrong = 0;
  // Of a reducer, medians over ranks and steps: exposed time by the library's report, and how far
  // that is off a clock outside, relative to it.
  double reported_exposed_ms = 0, report_error = 0;
  uint64_t last_bytes = 0;  // of a reducer: of the last bucket
};

ModeSummary summarize(const std::vector<RankReport>& ranks, size_t mode, double backward_ms,
                      uint64_t bytes);

struct OverlapSummary {
  std::string trace;
  size_t tensors = 0;
  uint64_t numel = 0, bytes = 0;
  int ranks = 1;
  bool copies = false;
  double backward_ms = 0;
  std::optional<double> comm_ratio;      // asked
  double rate_gbit = 0, latency_us = 0;  // shaped; 0: not
  std::string device, notice;
  uint32_t reads = 0;         // as noria_comm_info has it
  bool is_on_device = false;  // by NCCL; else over verbs
  std::vector<ModeSummary> modes;
  double flat_ms = 0;  // one all-reduce of everything; 0: not measured
  // What becomes ready last, and what an all-reduce of it takes alone.
  uint64_t tail_bytes = 0;
  std::optional<double> tail_ms;
  double least_step_ms = 0;  // of any order of sending; 0: not known
  double ddp_step_ms = 0;    // the least of DDP's plan, a bucket sent when it is full; 0: not known
  std::optional<double> full_buckets_step_ms;  // floor for buckets that start only when full
};

std::string overlap_table(const OverlapSummary& summary);
std::string overlap_json(const OverlapSummary& summary);

}  // namespace noria::perf
