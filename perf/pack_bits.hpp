// Whether a GPU packs and unpacks as the host does, bit for bit.
//
// Every kernel is launched as a reducer launches it, on tensors of odd lengths at odd places, some
// without memory, of any bits: what it writes, and what it leaves alone, is compared with the same
// kernel run on the host.
//
// Threads: one.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "bucketing/device_pack.hpp"
#include "perf/cuda_lane.hpp"

namespace noria::perf {

struct PackCase {
  noria_dtype tensor = NORIA_FLOAT32;
  noria_dtype bucket = NORIA_FLOAT32;
  bucketing::PackScale scale;
};

// All kernels, each with divisors of every kind.
std::vector<PackCase> pack_cases();
// "float32 in bfloat16, / 3 and / 1".
std::string describe(const PackCase& which);
// How many bytes of the bucket and of the tensors differ; 0: none.
uint64_t count_wrong_bytes(CudaLane& lane, const PackCase& which);

}  // namespace noria::perf
