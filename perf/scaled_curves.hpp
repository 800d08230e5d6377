// Curves on communicators that nobody measured: from the nearest that was, times what NCCL's model
// says of the one over the other.
//
// A time there is the time measured, times the model's there over the model's here: of the same
// choice, or of what the model would choose on each where the choice is open. So what the model is
// wrong by everywhere goes out. What the model says that fewer NICs take longer is added, for a
// slow start does not grow with the bytes of a NIC. How far both are off on public logs says
// plugin/tuner/RESULTS.md. Each size is from the nearest number of nodes that has it, with all its
// choices: what is compared was measured together. One node knows no network, and gives nothing.
//
// Threads: any thread; pure.
#pragma once

#include <vector>

#include "perf/tune_curves.hpp"
#include "plugin/tuner/nccl_model.hpp"

namespace noria::perf {

struct ScaleTo {
  uint64_t most_nodes = 0;      // powers of two from 2 to here, each for an octave around it
  uint64_t ranks_per_node = 0;  // behind the same NICs; 0: as measured
  uint64_t measured_nics = 0;   // of a node, where the usual cluster has others; 0: as many
};

// For every number of nodes up to most_nodes * sqrt(2), of the sizes that were not measured there
// with so many ranks and NICs.
std::vector<Curve> scaled_curves(const std::vector<Curve>& measured, const ScaleTo& to,
                                 const plugin::tuner::Cluster& usual);

}  // namespace noria::perf
