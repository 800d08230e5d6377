// Plans lists of tensors as DDP does, for comparison with another planner. A line of standard input
// is "first_cap cap count", then dtype and elements of each tensor, then the fill order; a line of
// standard output is the plan: indices with commas, buckets with semicolons.
#include <cstdio>
#include <iostream>
#include <string>

#include "bucketing/kernels.hpp"
#include "bucketing/plan.hpp"

using namespace noria::bucketing;

namespace {

noria_dtype dtype_of(const std::string& name) {
  for (noria_dtype dtype = NORIA_INT8; dtype <= NORIA_BFLOAT16; ++dtype)
    if (name == dtype_name(dtype)) return dtype;
  return -1;
}

}  // namespace

int main() {
  PlanCaps caps;
  size_t count = 0;
  while (std::cin >> caps.first_bucket_bytes >> caps.bucket_bytes >> count) {
    std::vector<PlanTensor> tensors(count);
    std::vector<uint32_t> order(count);
    for (PlanTensor& tensor : tensors) {
      std::string name;
      std::cin >> name >> tensor.numel;
      tensor.dtype = dtype_of(name);
      if (tensor.dtype < 0) return 2;
    }
    for (uint32_t& index : order) std::cin >> index;
    if (!std::cin) return 2;
    std::string text;
    for (const Bucket& bucket : plan_buckets(PlanKind::ddp, tensors, order, caps).buckets) {
      if (!text.empty()) text += ";";
      for (size_t i = 0; i < bucket.tensors.size(); ++i)
        text += (i == 0 ? "" : ",") + std::to_string(bucket.tensors[i]);
    }
    std::puts(text.c_str());
  }
  return 0;
}
