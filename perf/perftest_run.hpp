// A program of perftest between two processes of this machine, on the software HCA.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.hpp"

namespace noria::perf {

struct PerftestRow {
  double average = 0;                     // of a bandwidth test: messages a second
  double typical_us = 0, average_us = 0;  // of a latency test: one way
};

// `program` with its flags, as "ib_write_bw -t 8". Throws ToolError (environment) where it is not
// installed, fails, or prints no row within `limit`. Bound: see two_sides.hpp.
PerftestRow run_perftest(const std::string& program, uint64_t bytes, uint64_t iterations,
                         bool are_sides_bound, Nanoseconds limit);

}  // namespace noria::perf
