// What a communicator of a GPU lends to its reducers, which must not outlive it.
//
// Threads: a value; any thread.
#pragma once

#include "bucketing/cuda_stream.hpp"
#include "bucketing/nccl_collective.hpp"

namespace noria::bucketing {

struct DeviceHost {
  const CudaDevice* device = nullptr;  // null: a communicator of the host
  CallerStreams* streams = nullptr;
  NcclCollective* nccl = nullptr;
};

}  // namespace noria::bucketing
