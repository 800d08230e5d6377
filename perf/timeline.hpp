// The last step of each mode as a Chrome trace (Perfetto reads it: ui.perfetto.dev).
//
// A process per rank with the lanes step, backward (a slice per tensor, ending when it is ready)
// and buckets (a slice from first to last byte; where buckets overlap, further lanes). All ranks
// are on one clock, CLOCK_MONOTONIC. The modes' steps, which lie seconds apart, are moved together,
// by the same amount on all ranks.
//
// Threads: any thread.
#pragma once

#include <string>
#include <vector>

#include "perf/overlap_report.hpp"

namespace noria::perf {

// JSON. `order` names the tensors of the backward lane.
std::string timeline_json(const ReplayPlan& plan, const std::vector<RankReport>& ranks);

}  // namespace noria::perf
