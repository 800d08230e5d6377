// RailSet: the ports of a domain, each with a completion queue of the domain's own.
//
// A port may be shared with other domains, a queue is not.
//
// Threads: immutable after creation, apart from the completion queues (the domain's owner).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "base/units.hpp"
#include "verbs/api.hpp"
#include "verbs/cq.hpp"
#include "verbs/transport/port.hpp"

namespace noria::transport {

struct Rail {
  std::shared_ptr<Port> shared;
  verbs::OpenPort device;  // as it was reached when the domain was made
  verbs::CompletionQueue cq;

  const verbs::OpenPort& port() const { return device; }
};

// What NCCL asks of a plugin, and what most devices take in one work request. A length travels in
// 32 bits.
inline constexpr uint64_t kMaxMessageBytes = 1_GiB;

// Work requests that the longest message needs on a queue pair, where one carries so many bytes,
// beside the one that announces it; none where one carries it all.
constexpr uint32_t parts_of_longest(uint64_t request_bytes) {
  const uint64_t parts = (kMaxMessageBytes + request_bytes - 1) / request_bytes;
  return static_cast<uint32_t>(parts > 1 ? parts : 0);
}

struct RailSet {
  std::vector<Rail> rails;   // at least one
  uint32_t completions = 0;  // that each queue can hold
  // That every rail takes in one work request: whole lines, kMaxMessageBytes at most.
  uint64_t request_bytes = 0;

  bool is_infiniband() const {  // rails are of one kind
    return !rails.front().port().info.is_ethernet;
  }
  // Equal for sets of the same ports in the same order, while one of them stands.
  uint64_t ports() const {
    uint64_t sum = 0;
    for (const Rail& rail : rails)
      sum = sum * 0x9e3779b97f4a7c15 + reinterpret_cast<uintptr_t>(rail.shared.get());
    return sum;
  }
  const verbs::Provider& provider() const { return *rails.front().shared->provider(); }
  const verbs::Api& api() const { return rails.front().shared->api(); }
};

}  // namespace noria::transport
