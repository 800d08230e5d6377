// Devices, ports and contexts, as an application sees them.
//
// The devices that NORIA_SOFT_DEVICES describes, each with one active port; without it one RoCE
// device "noria0". They share the process's engine; a protection domain says of which device its
// queue pairs and regions are. ibv_context lies inside a real verbs_context, so that the inline
// functions of <infiniband/verbs.h> find their operations; ibv_device has zeroed room behind it,
// because vendor libraries look at what follows it.
//
// A forked child keeps pointers to its parent's objects but not the device: every call on them
// fails with ENODEV and says so once. It may open the device anew.
//
// Threads: any thread.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <string_view>

#include "base/verbs_extensions.hpp"
#include "verbs/soft/address.hpp"
#include "verbs/soft/async_events.hpp"
#include "verbs/soft/engine.hpp"

namespace noria::soft {

struct Context : verbs_context {
  Engine* engine = nullptr;
  uint32_t device = 0;  // in the order of the description
  const SoftDevice* description = nullptr;
  VerbsStats opened_at;  // counters when it was opened
  AsyncEvents async;
  std::atomic<bool> is_abandoned{false};  // we are a forked child
};

inline Context& context_of(ibv_context* context) {
  return *static_cast<Context*>(verbs_get_ctx(context));
}
// Null, with errno ENODEV, in a forked child.
Engine* engine_of(ibv_context* context);
// The same for a call that a fault may make fail: null, with errno as the fault says.
Engine* engine_for(ibv_context* context, std::string_view call);

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

uint64_t device_guid(const ibv_device* device);  // in network byte order
ibv_device_attr device_attributes(ibv_context* context);
ibv_port_attr port_attributes(ibv_context* context);
ibv_gid port_gid(ibv_context* context);
ibv_gid_type gid_type(ibv_context* context);
constexpr int kMaxCqe = 1 << 18;

// Takes the time of the process's devices into the caller's hands, and does what their thread would
// do at `now`. When there is more to do; -1 with errno EBUSY if a device was opened before.
Nanoseconds take_turn(Nanoseconds now);

// Since the process opened its first device.
VerbsStats port_stats(Engine& engine, uint32_t device);

}  // namespace noria::soft
