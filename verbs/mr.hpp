// Memory registration, for local use and for reads and writes by peers.
//
// Ordering::relaxed lets the device's writes pass each other on the bus, which is faster on some
// hosts and is safe for payload that a completion announces. Ordering::strict is for memory that is
// polled, as credits are. Where the library cannot express relaxed ordering, strict is used,
// which an INFO line of make_provider() says.
//
// Threads: any thread.
#pragma once

#include <cstdint>

#include "verbs/handle.hpp"

namespace noria::verbs {

enum class Ordering : uint8_t { strict, relaxed };

// Memory of another device as that device's driver exports it. The descriptor may be closed when
// the call returns.
struct Dmabuf {
  int fd = -1;
  uint64_t offset = 0;  // of the memory in it
};

// `bytes` must not be zero. The memory must stay mapped while the Mr lives.
Result<Mr> register_memory(const Api& api, ibv_pd* pd, void* base, size_t bytes, Ordering ordering);

// The same of a descriptor, known to work requests and to peers by `base`. Code::unsupported, in
// silence, where library, kernel or device cannot.
Result<Mr> register_dmabuf(const Api& api, ibv_pd* pd, const Dmabuf& memory, void* base,
                           size_t bytes, Ordering ordering);

// Whether the device of the domain can at all: asks it to register a descriptor that is none.
bool can_register_dmabuf(const Api& api, ibv_pd* pd);

}  // namespace noria::verbs
