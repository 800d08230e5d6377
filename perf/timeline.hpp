// Steps of all ranks on one clock, as pictures: a Chrome trace (Perfetto reads it: ui.perfetto.dev)
// and a page for a browser.
//
// The trace has a process per rank with the lanes step, backward (a slice a tensor where they are
// known, else one) and buckets (a slice from first to last byte; where buckets overlap, further
// lanes), and exposed. The page is one file with no reference to any other: a step's waterfall, and
// all steps to choose from.
//
// Pure.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace noria::perf {

// Times are ns of rank 0's clock; 0: not known.
struct TimelineBucket {
  std::string name;
  uint64_t bytes = 0;
  uint32_t tensors = 0;
  int64_t first_ns = 0, queued_ns = 0, ready_ns = 0;  // as noria_bucket_info has them
  int64_t start_ns = 0, end_ns = 0, wire_ns = 0;
};

struct TimelineGradient {
  std::string name;
  uint64_t numel = 0;
  int64_t ready_ns = 0;
};

struct TimelineStep {
  std::string name;  // the same on all ranks
  int64_t begin_ns = 0, last_gradient_ns = 0, end_ns = 0;
  std::vector<TimelineBucket> buckets;
  std::vector<TimelineGradient> gradients;  // in order of arrival; may be unknown
};

struct TimelineRank {
  int rank = 0;
  std::string host;
  int64_t clock_error_ns = 0;  // its times may be so far off rank 0's
  std::vector<TimelineStep> steps;
};

struct Timeline {
  std::string title;
  std::vector<TimelineRank> ranks;
};

std::string chrome_trace(const Timeline& timeline);   // JSON
std::string timeline_page(const Timeline& timeline);  // HTML

}  // namespace noria::perf
