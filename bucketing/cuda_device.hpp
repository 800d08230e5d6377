// CudaDevice: one GPU, by the primary context that frameworks use too.
//
// The context is retained until the object dies, and made the calling thread's for the time of a
// call: the caller's own is the current one again afterwards. Everything made on the device keeps
// a pointer to it and must not outlive it.
//
// Costs: make_current() is one call of the driver where the context is current already, else three
// with its end.
//
// Threads: any thread; create() and destructor init only.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include "bucketing/cuda_api.hpp"

namespace noria::bucketing {

class CudaDevice {
 public:
  // `library` as NORIA_CUDA. `ordinal` -1: that of the calling thread's current context.
  static Outcome<std::unique_ptr<CudaDevice>> create(const std::string& library, int32_t ordinal);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  // The calling thread's context, while it lives.
  class Current;
  NORIA_HOT Outcome<Current> make_current() const;

  int32_t ordinal() const { return ordinal_; }
  cuda::Device handle() const { return device_; }
  const std::string& name() const { return name_; }  // "CUDA device 0 (NVIDIA H200)"
  cuda::Context context() const { return context_; }
  const CudaApi& api() const { return *api_; }

  // ARG where `pointer` is not this device's memory. `argument` names it.
  Outcome<Ok> check_memory(const std::string& argument, const void* pointer) const;

 private:
  CudaDevice(const CudaApi& api, int32_t ordinal, cuda::Device device)
      : api_(&api), ordinal_(ordinal), device_(device) {}

  const CudaApi* api_;
  const int32_t ordinal_;
  const cuda::Device device_;
  cuda::Context context_ = nullptr;
  std::string name_;
};

class CudaDevice::Current {
 public:
  // `api` null: there is nothing to take back.
  explicit Current(const CudaApi* api) : api_(api) {}
  ~Current() {
    if (api_ != nullptr) take_back();
  }
  Current(Current&& other) noexcept : api_(std::exchange(other.api_, nullptr)) {}
  Current& operator=(Current&&) = delete;

 private:
  void take_back();

  const CudaApi* api_;
};

}  // namespace noria::bucketing
