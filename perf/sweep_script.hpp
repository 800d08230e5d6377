// The job script that measures what a table lacks: every choice that NCCL has for a collective, at
// the sizes that no measured row of it holds, one run of nccl-tests each.
//
// Pure.
//
// Threads: any thread.
#pragma once

#include <string>
#include <vector>

#include "plugin/tuner/table.hpp"

namespace noria::perf {

enum class Launcher : uint8_t { mpirun, slurm };

struct SweepPlan {
  plugin::tuner::Collective collective = plugin::tuner::Collective::all_reduce;
  uint64_t nodes = 2;
  uint64_t ranks_per_node = 8;
  uint64_t min_bytes = 8;  // powers of two from here to max_bytes, both with it
  uint64_t max_bytes = 0;
  Launcher launcher = Launcher::mpirun;
  std::string program;  // the path of nccl-tests' program on the nodes
};

// Sizes that follow each other by the factor 2.
struct Run {
  plugin::tuner::Algorithm algorithm{};
  plugin::tuner::Protocol protocol{};
  uint64_t first_bytes = 0;
  uint64_t last_bytes = 0;
};

// What is missing. A row counts as measured where it is predicted and not modelled. LL stops at
// 128 MiB and LL128 at 1 GiB: beyond, their part of the bandwidth is known. CollNet wants switches
// of its own, and is left to who has them.
std::vector<Run> missing_runs(const SweepPlan& plan, const plugin::tuner::Table& table);

// For bash. Each run's log is a file that noria_tune fit reads; a run that fails is told, and the
// next is made.
std::string script_of(const SweepPlan& plan, const std::vector<Run>& runs);

}  // namespace noria::perf
