// NCCL's words that all its plugin interfaces share: results, log levels, the logger.
//
// Numbers are NCCL's and never change. Declared here and not taken from its headers, so that noria
// builds without NCCL and serves every version of it.
//
// Threads: plain values.
#pragma once

#include <cstdint>

namespace noria::plugin::abi {

enum class Result : int {
  success = 0,
  system_error = 2,      // this host's: the device, memory, the operating system
  internal_error = 3,    // a bug
  invalid_argument = 4,  // of the caller
  invalid_usage = 5,     // the ranks do not fit together
  remote_error = 6,      // the peer, or the way to it
};

enum class LogLevel : int { warn = 2, info = 3 };
inline constexpr unsigned long kLogInit = 0x1;
inline constexpr unsigned long kLogNet = 0x10;

// NCCL's own log. Takes a printf format.
using Logger = void (*)(LogLevel level, unsigned long subsystems, const char* file, int line,
                        const char* format, ...);

// Writes events into NCCL's profiler; noria has none to write.
using ProfilerCallback = Result (*)(void** event, int type, void* parent, int64_t plugin,
                                    void* data);

}  // namespace noria::plugin::abi
