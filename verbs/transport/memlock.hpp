// The limit on locked memory, which is what most often stops a registration.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <string>

namespace noria::transport {

inline constexpr uint64_t kNoMemlockLimit = UINT64_MAX;

uint64_t memlock_limit();  // of this process, in bytes

// What to do when the system says that it has no memory to register: "the limit on locked memory is
// 64 KiB: raise it ...".
std::string memlock_advice(uint64_t limit);

}  // namespace noria::transport
