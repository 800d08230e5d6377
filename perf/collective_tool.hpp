// The body of all_reduce_perf and the tools of its family: flags, ranks, table and exit code.
//
// Threads: one.
#pragma once

#include "perf/collective_bench.hpp"

namespace noria::perf {

// What main() returns.
int run_collective_tool(const CollectiveKind& kind, int argc, char** argv);

}  // namespace noria::perf
