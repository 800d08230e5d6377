// PackModule: the pack kernels as one GPU has them.
//
// Everything that packs on a device shares one, which is unloaded with the last of it. Where the
// image is empty or holds nothing that the device runs, there are no kernels, and a warning says so
// once: that is no failure, for what is neither cast nor scaled can be copied.
//
// Threads: any thread; of() and the end of the last one init only.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "bucketing/cuda_device.hpp"

namespace noria::bucketing {

class PackModule {
 public:
  // Must not outlive the device.
  static Outcome<std::shared_ptr<const PackModule>> of(const CudaDevice& device);
  ~PackModule();
  PackModule(const PackModule&) = delete;
  PackModule& operator=(const PackModule&) = delete;

  bool has_kernels() const { return module_ != nullptr; }
  const std::string& why_none() const { return why_none_; }
  // By a name of pack_kernels.def; there are kernels. The device is current.
  Outcome<cuda::Function> find(const std::string& kernel) const;

 private:
  explicit PackModule(const CudaDevice& device) : device_(&device) {}
  Outcome<Ok> load();

  const CudaDevice* const device_;
  cuda::Module module_ = nullptr;
  std::string why_none_;
};

}  // namespace noria::bucketing
