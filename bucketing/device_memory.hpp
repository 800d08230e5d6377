// DeviceMemory: a piece of a GPU's memory.
//
// Costs: cuMemAlloc and cuMemFree, which may wait for everything that the device does: made before
// the first step, freed after the last.
//
// Threads: init only; its address any thread.
#pragma once

#include <cstddef>
#include <string>
#include <utility>

#include "bucketing/cuda_device.hpp"

namespace noria::bucketing {

class DeviceMemory {
 public:
  // Of no bytes: none. Aligned to 256 bytes.
  static Outcome<DeviceMemory> allocate(const CudaDevice& device, size_t bytes) {
    cuda::Pointer pointer = 0;
    if (bytes == 0) return DeviceMemory(device, pointer);
    NORIA_TRY_ASSIGN(const CudaDevice::Current current, device.make_current());
    const auto made = device.api().call<&CudaSymbols::memory_allocate>(&pointer, bytes);
    if (!made)
      return Failure{made.failure().code, std::to_string(bytes) + " bytes of " + device.name() +
                                              ": " + made.failure().text};
    return DeviceMemory(device, pointer);
  }
  ~DeviceMemory() {
    if (pointer_ == 0) return;
    // What goes wrong here went wrong before, and was told then.
    const auto current = device_->make_current();
    static_cast<void>(device_->api().call<&CudaSymbols::memory_free>(pointer_));
  }
  DeviceMemory(DeviceMemory&& other) noexcept
      : device_(other.device_), pointer_(std::exchange(other.pointer_, 0)) {}
  DeviceMemory& operator=(DeviceMemory&&) = delete;

  cuda::Pointer pointer() const { return pointer_; }

 private:
  DeviceMemory(const CudaDevice& device, cuda::Pointer pointer)
      : device_(&device), pointer_(pointer) {}

  const CudaDevice* device_;
  cuda::Pointer pointer_;
};

}  // namespace noria::bucketing
