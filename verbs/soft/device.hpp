// Devices, ports and contexts, as an application sees them.
//
// One device "noria0" with one active RoCE port. ibv_context lies inside a real verbs_context, so
// that the inline functions of <infiniband/verbs.h> find their operations; ibv_device has zeroed
// room behind it, because vendor libraries look at what follows it.
//
// A forked child keeps pointers to its parent's objects but not the device: every call on them
// fails with ENODEV and says so once. It may open the device anew.
//
// Threads: any thread.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>

#include "base/verbs_extensions.hpp"
#include "verbs/soft/async_events.hpp"
#include "verbs/soft/engine.hpp"

namespace noria::soft {

struct Context : verbs_context {
  Engine* engine = nullptr;
  VerbsStats opened_at;  // counters when it was opened
  AsyncEvents async;
  std::atomic<bool> is_abandoned{false};  // we are a forked child
};

inline Context& context_of(ibv_context* context) {
  return *static_cast<Context*>(verbs_get_ctx(context));
}
// Null, with errno ENODEV, in a forked child.
Engine* engine_of(ibv_context* context);

struct Pd : ibv_pd {
  uint32_t number = 0;
  std::atomic<int> users{0};
};

struct Mr : ibv_mr {
  Mapping<void> mapping;  // of a file that was registered; goes with the region
};

ibv_device** list_devices(int* count);
void free_device_list(ibv_device** list);
ibv_context* open_device(ibv_device* device);
int close_device(ibv_context* context);

ibv_device_attr device_attributes();
ibv_port_attr port_attributes();
const ibv_gid& port_gid();
uint64_t node_guid();  // in network byte order
constexpr int kMaxCqe = 1 << 18;
// Where ibv_device::ibdev_path points; empty while there is no such tree.
const char* device_path();

VerbsStats port_stats(Engine& engine);

}  // namespace noria::soft
