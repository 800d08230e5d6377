// KeptViews: what stood in the views of tensors that a rank left out, until the ranks know whether
// any of them used one.
//
// With NORIA_UNUSED_KEEP the gradient of a tensor that no rank used stays as it was. That is known
// when the step is over, and meanwhile the view holds zeros, this rank's part of the average. What
// stood there waits elsewhere on the device, in memory that is made when a tensor is left out for
// the first time, and stays: models leave out the same tensors again and again.
//
// Nothing here waits: all is put on one stream, whose order guards that memory.
//
// Costs: a copy on the device of what is saved, and another of what is put back; as much memory as
// the tensors take that were left out in some step.
//
// Threads: one at a time, with the device current. Whoever destroys it has seen the stream end.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <vector>

#include "bucketing/device_memory.hpp"

namespace noria::bucketing {

class KeptViews {
 public:
  struct View {
    uint32_t id = 0;  // the tensor's
    cuda::Pointer at = 0;
    uint64_t bytes = 0;
  };

  explicit KeptViews(const CudaDevice& device) : device_(&device) {}

  // A step begins: nothing is saved.
  void restart() { saved_.clear(); }
  // What `stream` is given from now on may overwrite the view. Once a step.
  Outcome<Ok> save(const View& view, cuda::Stream stream);
  // Of each that was saved and is not `is_used`, by id, what stood in the view stands there again
  // for what `stream` is given from now on. False: there was none.
  Outcome<bool> put_back(const std::function<bool(uint32_t)>& is_used, cuda::Stream stream) const;

 private:
  const CudaDevice* device_;
  std::vector<View> saved_;                  // in this step
  std::map<uint32_t, DeviceMemory> memory_;  // by id
};

}  // namespace noria::bucketing
