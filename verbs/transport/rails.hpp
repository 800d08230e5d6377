// RailSet: the ports a domain opened, each with its completion queue.
//
// Shared by the domain and by every Region, so that a registration never outlives the protection
// domain it belongs to, whatever order their owners drop them in. Rail i of one peer talks to rail
// i of the other.
//
// Threads: immutable after creation, apart from the completion queues (the domain's owner).
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "verbs/api.hpp"
#include "verbs/cq.hpp"
#include "verbs/device.hpp"
#include "verbs/provider.hpp"

namespace noria::transport {

struct Rail {
  verbs::OpenPort port;
  verbs::EventedCq cq;
};

struct RailSet {
  std::shared_ptr<const verbs::Provider> provider;
  std::vector<Rail> rails;
  uint32_t completions = 0;        // that each queue can hold
  uint64_t max_message_bytes = 0;  // that every rail takes in one work request

  const verbs::Api& api() const { return provider->api(); }
};

}  // namespace noria::transport
