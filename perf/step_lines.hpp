// What NORIA_TRACE makes a rank write (bucketing/timeline.hpp): its steps as JSON lines.
//
// Pure but for what it is given to read.
//
// Threads: any thread.
#pragma once

#include <string>
#include <vector>

#include "perf/timeline.hpp"

namespace noria::perf {

struct StepLines {
  int ranks = 0;      // of the communicator
  std::string group;  // tells it from others
  TimelineRank rank;  // times are on rank 0's clock
};

// `file` is for the text of the failure. Throws ToolError (usage) that names file and line. The
// error of the clock is that of the end: clocks of two hosts drift apart after they were compared.
StepLines parse_step_lines(const std::string& text, const std::string& file);

// The ranks in order. Throws ToolError (usage) where files are of different jobs, or of one rank.
Timeline join_ranks(std::vector<StepLines> ranks);

// Throws ToolError (usage) where no rank has a step, and says where they may be.
void require_steps(const Timeline& timeline);

// A line a step of the first rank that has any: the slowest rank's times, and which rank that was.
std::string step_table(const Timeline& timeline);

}  // namespace noria::perf
