// The flags of nccl-tests, as the tools of its family take them.
//
// Threads: init only.
#pragma once

#include <noria/bucketing.h>

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "perf/sizes.hpp"

namespace noria::perf {

struct BenchOptions {
  Sweep sweep{.min_bytes = 32U << 20, .max_bytes = 32U << 20, .step_bytes = 1U << 20};
  int iterations = 20;
  int warmups = 5;
  int checks = 1;
  bool blocking = true;
  std::vector<noria_dtype> dtypes{NORIA_FLOAT32};
  std::vector<noria_op> ops{NORIA_SUM};
  int local_ranks = 0;  // 0: -g was not given
  std::string backend = "host";
  std::string json_file;
  bool json_to_stdout = false;
  std::vector<std::string> arguments;  // the command line, for the JSON

  bool is_on_device() const { return backend == "nccl"; }
};

// Flags of nccl-tests, by their short and long names. What does not reduce takes the types that are
// only moved too, and refuses -o.
void add_bench_flags(CLI::App& app, BenchOptions& options, bool reduces = true);

// Refuses, with one line and exit 2, flags that make no sense together.
void settle(const BenchOptions& options);

// Lowers max_bytes to what this machine's memory allows for its ranks, and returns the line that
// says so; empty where nothing was lowered. Where ranks are of several hosts they must not do this
// alone.
std::string limit_to_memory(BenchOptions& options, int ranks_here);

}  // namespace noria::perf
