// The constants of NCCL's own cost model, as version 2.30 starts with them, and what a table puts
// in their place.
//
// The numbers are facts of NCCL 2.30.7 (src/graph/tuning.cc); which of them count for a
// communicator is nccl_model.hpp's.
//
// Threads: pure.
#pragma once

#include <vector>

#include "plugin/abi/tuner.hpp"
#include "plugin/tuner/table.hpp"

namespace noria::plugin::tuner {

// Latencies in us, bandwidths in GB/s.
abi::TunerConstants nccl_constants();

// The `constant` lines of a table; a place past the end is left out.
void apply(const std::vector<Constant>& changed, abi::TunerConstants* constants);

}  // namespace noria::plugin::tuner
