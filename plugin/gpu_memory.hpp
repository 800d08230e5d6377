// GpuMemory: by which ways a device reaches GPU memory, and whether what arrives there is flushed.
//
// NCCL asks by descriptor where both it and the device can, else by address, else it copies through
// host memory. By address needs a module of the kernel, by descriptor a device that registers
// dmabufs.
//
// Threads: plain values.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "verbs/provider.hpp"

namespace noria::plugin {

struct GpuMemory {
  bool by_descriptor = false;
  bool by_address = false;
  std::string text = "through host memory";  // the order of ways, and why one is missing
};

// `module` is the kernel's (verbs/transport/peer_memory.hpp), empty for none.
GpuMemory gpu_memory_of(verbs::ProviderKind kind, const std::string& module, bool takes_dmabuf);

enum class Flushing : uint8_t {  // from the least to the most
  never,                         // what was received is there: iflush() has nothing to do
  when_asked,                    // NCCL knows its GPU, and asks where that needs it: before Hopper
  always,                        // NCCL is told to ask for any GPU
};

Flushing flushing_of(const GpuMemory& memory, verbs::ProviderKind kind, bool is_disabled);

// Whether `bytes` that were received in memory of a GPU, or not, are flushed.
constexpr bool needs_flush(Flushing flushing, bool is_of_gpu, uint64_t bytes) {
  return flushing != Flushing::never && is_of_gpu && bytes != 0;
}

}  // namespace noria::plugin
