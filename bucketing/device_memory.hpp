// DeviceMemory: a piece of a GPU's memory.
//
// Costs: cuMemAlloc and cuMemFree, which may wait for everything that the device does: made before
// the first step, freed after the last. What a step turns out to need is allocated in a stream, by
// the driver's memory pool, which waits for nothing; where a device has none, as those of some
// virtual machines, as all else.
//
// Threads: init only, but allocate_in() any thread; its address any thread.
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
    if (!made) return no_memory(device, bytes, made.failure());
    return DeviceMemory(device, pointer);
  }
  // For what `stream` is given from now on.
  static Outcome<DeviceMemory> allocate_in(const CudaDevice& device, size_t bytes,
                                           cuda::Stream stream) {
    NORIA_TRY_ASSIGN(const CudaDevice::Current current, device.make_current());
    int has_pools = 0;
    NORIA_TRY(device.api().call<&CudaSymbols::device_get_attribute>(
        &has_pools, cuda::DeviceAttribute::memory_pools_supported, device.handle()));
    if (has_pools == 0 || bytes == 0) return allocate(device, bytes);
    cuda::Pointer pointer = 0;
    const auto made = device.api().call<&CudaSymbols::memory_allocate_in>(&pointer, bytes, stream);
    if (!made) return no_memory(device, bytes, made.failure());
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
  // It is never given back, as something may be at it for ever.
  void keep_for_good() { pointer_ = 0; }

 private:
  static Failure no_memory(const CudaDevice& device, size_t bytes, const Failure& why) {
    return {why.code, std::to_string(bytes) + " bytes of " + device.name() + ": " + why.text};
  }
  DeviceMemory(const CudaDevice& device, cuda::Pointer pointer)
      : device_(&device), pointer_(pointer) {}

  const CudaDevice* device_;
  cuda::Pointer pointer_;
};

}  // namespace noria::bucketing
