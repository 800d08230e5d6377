// How fast a GPU packs and unpacks a model's gradients, beside copies of as many bytes.
//
// The model is cut into buckets as a reducer cuts it by default; each is packed into one of two
// slots, by one launch, and so are the copies, each one call for a bucket's bytes. Both in turn, so
// that what else the device does falls on both; the median over rounds.
//
// Threads: one.
#pragma once

#include "bucketing/device_pack.hpp"
#include "perf/cuda_lane.hpp"
#include "perf/trace.hpp"

namespace noria::perf {

struct PackSpeed {
  uint64_t bytes = 0;    // of the gradients
  uint64_t traffic = 0;  // read and written, one way
  uint64_t buckets = 0;
  double pack_us = 0, unpack_us = 0;
  double copy_us = 0;  // of the gradients' bytes, which are read and written once each

  // What a copy of the same traffic takes, by what packing does; 1 is as fast.
  double pack_ratio() const { return copy_of_traffic_us() / pack_us; }
  double unpack_ratio() const { return copy_of_traffic_us() / unpack_us; }

 private:
  double copy_of_traffic_us() const {
    return copy_us * static_cast<double>(traffic) / (2 * static_cast<double>(bytes));
  }
};

// Tensors of float32 travel as `wire`, all others as they are.
PackSpeed measure_packing(CudaLane& lane, const Trace& trace, noria_dtype wire,
                          bucketing::PackScale scale, int rounds);

}  // namespace noria::perf
