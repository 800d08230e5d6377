// The types and numbers of CUDA's driver API that noria uses, by the driver's ABI.
//
// cuda.h is not needed to build: these are facts of an interface that stays as it is. Handles are
// pointers to structs of the driver's own; a device pointer is a number.
//
// Threads: values.
#pragma once

#include <cstddef>
#include <cstdint>

namespace noria::bucketing::cuda {

using Device = int;
using Context = struct ContextOfDriver*;
using Stream = struct StreamOfDriver*;
using Event = struct EventOfDriver*;
using Module = struct ModuleOfDriver*;
using Function = struct FunctionOfDriver*;
using Pointer = unsigned long long;
static_assert(sizeof(Pointer) == 8 && sizeof(void*) == 8);

// What every function of the driver returns. Those that noria tells apart.
enum class Result : int {
  success = 0,
  invalid_value = 1,
  out_of_memory = 2,
  not_initialized = 3,
  deinitialized = 4,
  stub_library = 34,
  no_device = 100,
  invalid_device = 101,
  invalid_image = 200,
  invalid_context = 201,
  no_binary_for_gpu = 209,
  invalid_ptx = 218,
  unsupported_ptx_version = 222,
  not_found = 500,
  not_ready = 600,
  illegal_address = 700,
  context_is_destroyed = 709,
  launch_failed = 719,
  not_supported = 801,
  system_driver_mismatch = 803,
};

// Handles of streams that are none: CUDA's default streams.
inline Stream legacy_stream() { return nullptr; }
inline Stream per_thread_stream() { return reinterpret_cast<Stream>(uintptr_t{2}); }

// cuStreamCreateWithPriority(): the legacy default stream and this one do not wait for each other.
inline constexpr unsigned kStreamNonBlocking = 1;
// cuEventCreate(): recording and waiting are cheaper.
inline constexpr unsigned kEventWithoutTiming = 2;

enum class DeviceAttribute : int {
  capability_major = 75,
  capability_minor = 76,
  memory_pools_supported = 115,
};

enum class PointerAttribute : int { memory_type = 2, device_ordinal = 9 };
inline constexpr unsigned kMemoryOfDevice = 2;

}  // namespace noria::bucketing::cuda
