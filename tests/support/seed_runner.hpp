// Runs of many seeds, each in a process of its own, and the replay of one.
//
//   TEST --seed 123 [--print]   replays one, with its trace
//   TEST --seeds 20000          runs so many of them
//
// Threads: one.
#pragma once

#include <cstdint>
#include <string>

namespace noria::test {

// Fits through a pipe.
struct SeedReport {
  uint64_t trace = 0;  // hash of all that was seen
  uint64_t completions = 0, failures = 0, events = 0;
  char wrong[256] = {};  // what did not hold, first; empty if all did
};

// A run; `prints`: each line of its trace goes to standard output.
using SeedRun = SeedReport (*)(uint64_t seed, bool prints);

// main() of a test: `seeds` where the command line says nothing.
int run_seed_tests(int argc, char** argv, SeedRun run, uint64_t seeds);

// The run of a seed; a report that says so where it ended badly.
SeedReport report_of(uint64_t seed);
std::string replay_of(uint64_t seed);  // the command
// All that are to run, together: `wrong` names each that went wrong and the command that shows it.
struct SeedTotals {
  uint64_t seeds = 0, completions = 0, failures = 0, events = 0;
  std::string wrong;
};
SeedTotals run_all_seeds();
// Runs the first `count` twice; the commands of those that differ.
std::string differing_seeds(uint64_t count);

}  // namespace noria::test
