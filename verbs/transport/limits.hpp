// The limits of a process that most often stop a set-up, and what to do about them.
//
// Registered memory and the queues of queue pairs are locked memory: where that limit is low,
// devices answer ENOMEM.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.hpp"

namespace noria::transport {

struct Limits {
  static constexpr uint64_t kNone = UINT64_MAX;

  uint64_t memlock_bytes = kNone;
  uint64_t descriptors = kNone;

  static Limits of_this_process();
};

// What to do when something was refused for want of what is limited: "the limit on locked memory is
// 64 KiB: raise it ..."; empty for any other failure.
std::string advice_on(Status refusal, const Limits& limits);

}  // namespace noria::transport
