// Asynchronous events: what happens to a device, a port or a queue without a request that could
// report it.
//
// take_event() never blocks, for open_port() made the descriptor so, and acknowledges at once: so
// what an event is about may be gone when it is looked at, and is known by its address alone.
//
// Threads: any thread; an event goes to one of them.
#pragma once

#include <optional>

#include "verbs/api.hpp"

namespace noria::verbs {

struct AsyncEvent {
  ibv_event_type type{};
  const void* object = nullptr;  // the queue pair or completion queue that it is about
  uint8_t port = 0;              // of the device; 0: about no port
};

// What an event takes away.
enum class EventCost : uint8_t {
  nothing,  // worth a line; also a peer's bad request, for the peer knows why and says it
  silence,  // of those who asked for it; not worth one
  path,     // how the port is reached may have changed
  queue,    // the queue pair or completion queue
  device,
};
EventCost cost_of(ibv_event_type type);

// Enters the kernel. Nothing when none waits. A device whose events cannot be read any more is as
// good as one that reported that it failed.
std::optional<AsyncEvent> take_event(const Api& api, ibv_context* context);

}  // namespace noria::verbs
