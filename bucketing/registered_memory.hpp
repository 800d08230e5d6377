// RegisteredMemory: a piece of a GPU's memory that NCCL knows of, and reduces in again and again.
//
// NCCL may then move it without a copy to buffers of its own, or tell the network card of it once
// and for all. Where it cannot, the memory is like any other. NCCL forgets it before it is given
// back, by whoever comes first: this one's end, or the communicator's, which this one may outlive.
// Memory that NCCL did not forget is not given back: other memory at the same address would be
// taken for it.
//
// Costs: DeviceMemory's, and ncclCommRegister(), which takes long where a network card is told.
//
// Threads: init only, while nothing uses the memory; its address any thread.
#pragma once

#include <cstddef>
#include <utility>

#include "bucketing/device_memory.hpp"
#include "bucketing/nccl_collective.hpp"

namespace noria::bucketing {

class RegisteredMemory {
 public:
  // Of `nccl`'s device. Without NCCL's doing: null.
  static Outcome<RegisteredMemory> allocate(const CudaDevice& device, NcclCollective* nccl,
                                            size_t bytes) {
    NORIA_TRY_ASSIGN(DeviceMemory memory, DeviceMemory::allocate(device, bytes));
    void* const handle = nccl != nullptr ? nccl->register_memory(memory.pointer(), bytes) : nullptr;
    return RegisteredMemory(std::move(memory), nccl, handle);
  }
  ~RegisteredMemory() {
    if (handle_ != nullptr && !nccl_->deregister_memory(handle_)) memory_.keep_for_good();
  }
  RegisteredMemory(RegisteredMemory&& other) noexcept
      : memory_(std::move(other.memory_)),
        nccl_(other.nccl_),
        handle_(std::exchange(other.handle_, nullptr)) {}
  RegisteredMemory& operator=(RegisteredMemory&&) = delete;

  cuda::Pointer pointer() const { return memory_.pointer(); }
  // It is never given back; the communicator's end makes NCCL forget it.
  void keep_for_good() {
    handle_ = nullptr;
    memory_.keep_for_good();
  }

 private:
  RegisteredMemory(DeviceMemory memory, NcclCollective* nccl, void* handle)
      : memory_(std::move(memory)), nccl_(nccl), handle_(handle) {}

  DeviceMemory memory_;
  NcclCollective* nccl_;
  void* handle_;  // null: none, or left to the communicator
};

}  // namespace noria::bucketing
