#include "verbs/soft/device.hpp"

#include <errno.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <new>

#include "base/log.hpp"
#include "base/verbs_extensions.hpp"
#include "verbs/soft/device_time.hpp"
#include "verbs/soft/device_tree.hpp"
#include "verbs/soft/host_address.hpp"
#include "verbs/soft/operations.hpp"

namespace noria::soft {
namespace {

// ibv_device is the head of a larger, private structure in every verbs library.
constexpr size_t kDeviceRoom = 4096;
struct Device : ibv_device {
  uint8_t room[kDeviceRoom - sizeof(ibv_device)];
};

Device the_devices[kMaxDevices];

size_t index_of_device(const ibv_device* device) {
  return static_cast<size_t>(static_cast<const Device*>(device) - the_devices);
}

// What this process has open.
struct Process {
  Mutex mutex;
  std::vector<SoftDevice> devices NORIA_GUARDED_BY(mutex);
  std::unique_ptr<Engine> engine NORIA_GUARDED_BY(mutex);
  std::vector<Context*> contexts NORIA_GUARDED_BY(mutex);
  std::unique_ptr<Params> params NORIA_GUARDED_BY(mutex);
  bool is_fork_watched NORIA_GUARDED_BY(mutex) = false;
};

Process& process() {
  // Never destroyed: a thread may outlive main. In static memory, so that it is no leak either.
  alignas(Process) static std::byte memory[sizeof(Process)];
  static Process* const the_process = new (memory) Process;
  return *the_process;
}

// When a user closes the library, or at the end of the program: what nobody uses is given back.
[[gnu::destructor]] void on_unload() {
  Process& p = process();
  MutexLock lock(p.mutex);
  if (!p.contexts.empty()) return;
  p.params.reset();
  p.devices = std::vector<SoftDevice>();
  p.contexts = std::vector<Context*>();
}

// In the child after fork(): one thread, and locks in whatever state they were.
void on_forked_child() NORIA_NO_THREAD_SAFETY_ANALYSIS {
  Process& p = process();
  for (Context* context : p.contexts) {
    context->is_abandoned.store(true, std::memory_order_relaxed);
    abandon_operations(*context);
  }
  if (p.engine != nullptr) p.engine.release()->abandon_in_child();
  p.contexts.clear();
  new (&p.mutex) Mutex;
}

void show(Device& device, const SoftDevice& description, const std::string& path) {
  device.node_type = IBV_NODE_CA;
  device.transport_type = IBV_TRANSPORT_IB;
  const auto set = [](char* to, size_t room, const std::string& text) {
    std::snprintf(to, room, "%s", text.c_str());
  };
  set(device.name, sizeof device.name, description.name);
  set(device.dev_name, sizeof device.dev_name, "uverbs_" + description.name);
  set(device.ibdev_path, sizeof device.ibdev_path, path);
}

// Reads the environment and makes the devices, once.
bool load_devices(Process& p) NORIA_REQUIRES(p.mutex) {
  if (p.params != nullptr) return true;
  // NCCL's names are its own here: its transport may be what runs on this device.
  auto params = load_params(environ, NcclNames::ignored);
  if (!params.is_ok()) {
    log(LogLevel::error, "%s", params.failure().c_str());
    return false;
  }
  set_host_address(find_host_address(params->socket_ifname));
  auto devices = parse_soft_devices(params->soft_devices).value();  // load_params() has checked it
  for (size_t i = 1; i < devices.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      const SharedAddress one = address_of(devices[j]), other = address_of(devices[i]);
      if (!collides(one, other)) continue;
      log(LogLevel::error, "NORIA_SOFT_DEVICES: %s", collision_text(one, other).c_str());
      return false;
    }
  }
  p.params = std::make_unique<Params>(std::move(params).value());
  p.devices = std::move(devices);
  std::vector<std::string> paths(p.devices.size());
  if (p.devices.front().is_described) {
    auto tree = make_device_tree(p.devices, p.params->xdg_runtime_dir);
    if (tree.is_ok())
      paths = std::move(tree).value();
    else
      log(LogLevel::warn, "software HCA: its devices have no PCI path and NUMA node: %s",
          tree.failure().c_str());
  }
  for (size_t i = 0; i < p.devices.size(); ++i) show(the_devices[i], p.devices[i], paths[i]);
  return true;
}

}  // namespace

uint64_t device_guid(const ibv_device* device) {
  Process& p = process();
  MutexLock lock(p.mutex);
  const size_t index = index_of_device(device);
  return index < p.devices.size() ? guid_of(address_of(p.devices[index])) : 0;
}

Engine* engine_of(ibv_context* context) {
  Context& c = context_of(context);
  if (!c.is_abandoned.load(std::memory_order_relaxed)) return c.engine;  // set in on_forked_child()
  static std::atomic<bool> has_said{false};
  if (!has_said.exchange(true, std::memory_order_relaxed))
    log(LogLevel::error,
        "software HCA: objects of the parent were used after fork(); open the device again in the "
        "child");
  errno = ENODEV;
  return nullptr;
}

Engine* engine_for(ibv_context* context, std::string_view call) {
  Engine* engine = engine_of(context);
  if (engine == nullptr || engine->faults() == nullptr) return engine;
  const int failure = engine->faults()->on_call(context_of(context).device, call);
  if (failure == 0) return engine;
  errno = failure;
  return nullptr;
}

ibv_device** list_devices(int* count) {
  Process& p = process();
  MutexLock lock(p.mutex);
  if (count != nullptr) *count = 0;
  if (!load_devices(p)) {
    errno = EINVAL;
    return nullptr;
  }
  auto** list = static_cast<ibv_device**>(std::calloc(p.devices.size() + 1, sizeof(void*)));
  if (list == nullptr) return nullptr;
  for (size_t i = 0; i < p.devices.size(); ++i) list[i] = &the_devices[i];
  if (count != nullptr) *count = static_cast<int>(p.devices.size());
  return list;
}

void free_device_list(ibv_device** list) { std::free(list); }

ibv_context* open_device(ibv_device* device) {
  Process& p = process();
  MutexLock lock(p.mutex);
  const size_t index = index_of_device(device);
  if (!load_devices(p) || index >= p.devices.size()) {
    errno = EINVAL;
    return nullptr;
  }
  Fd events(::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE));
  if (!events.is_open()) return nullptr;  // errno says why
  if (p.engine == nullptr) p.engine = Engine::start(*p.params, p.devices);
  if (p.engine == nullptr) return nullptr;  // errno says why
  if (!p.is_fork_watched) pthread_atfork(nullptr, nullptr, &on_forked_child);
  p.is_fork_watched = true;
  auto context = std::make_unique<Context>();
  context->engine = p.engine.get();
  context->device = static_cast<uint32_t>(index);
  context->description = &p.devices[index];
  context->context.device = device;
  context->context.cmd_fd = -1;
  context->context.async_fd = events.release();
  context->context.num_comp_vectors = 1;
  context->opened_at = port_stats(*p.engine, context->device);
  pthread_mutex_init(&context->context.mutex, nullptr);
  fill_operations(*context);
  if (p.engine->faults() != nullptr) p.engine->faults()->add_context(context.get());
  p.contexts.push_back(context.get());
  return &context.release()->context;
}

Nanoseconds take_turn(Nanoseconds now) {
  Process& p = process();
  MutexLock lock(p.mutex);
  if (p.engine != nullptr && !is_time_standing()) {
    errno = EBUSY;
    return -1;
  }
  stand_at(now);
  return p.engine != nullptr ? p.engine->turn() : kNever;
}

int close_device(ibv_context* context) {
  Process& p = process();
  Context* c = &context_of(context);
  MutexLock lock(p.mutex);
  std::erase(p.contexts, c);
  const bool is_ours = !c->is_abandoned.load(std::memory_order_relaxed);
  if (is_ours && c->engine->faults() != nullptr) c->engine->faults()->remove_context(c);
  ::close(context->async_fd);
  if (is_ours && p.contexts.empty()) {
    if (!p.engine->is_empty())
      log(LogLevel::info, "software HCA: closed with queues still open; they end here");
    p.engine.reset();
  }
  delete c;
  return 0;
}

namespace {
// Without the engine: it answers in a forked child too.
SharedAddress own_address(ibv_context* context) {
  return address_of(*context_of(context).description);
}

// As the specification numbers lanes and the rate of one.
uint8_t width_code(uint32_t lanes) {
  switch (lanes) {
    case 1: return 1;
    case 2: return 16;
    case 4: return 2;
    case 8: return 4;
    default: return 8;  // 12
  }
}
uint8_t speed_code(double lane_gbit) {
  constexpr std::array<uint8_t, detail::kLaneRates.size()> kCodes{1, 2, 4, 16, 32, 64, 128};
  const auto rate = std::find(detail::kLaneRates.begin(), detail::kLaneRates.end(), lane_gbit);
  return kCodes[static_cast<size_t>(rate - detail::kLaneRates.begin())];
}
}  // namespace

ibv_device_attr device_attributes(ibv_context* context) {
  ibv_device_attr attr{};
  std::snprintf(attr.fw_ver, sizeof attr.fw_ver, "noria-soft");
  attr.node_guid = attr.sys_image_guid = guid_of(own_address(context));
  attr.max_mr_size = UINT64_MAX;
  attr.page_size_cap = 0xfffff000;
  attr.max_qp = kMaxQps;
  attr.max_qp_wr = kMaxQueueDepth;
  attr.device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_SYS_IMAGE_GUID;
  attr.max_sge = kMaxSge;
  attr.max_sge_rd = kMaxSge;
  attr.max_cq = kMaxCqs;
  attr.max_cqe = kMaxCqe;
  attr.max_mr = kMaxMrs - 2;
  attr.max_pd = 1 << 16;
  attr.max_qp_rd_atom = attr.max_qp_init_rd_atom = 16;
  attr.max_res_rd_atom = 16 * kMaxQps;
  attr.atomic_cap = IBV_ATOMIC_HCA;
  attr.max_srq = kMaxQps;
  attr.max_srq_wr = kMaxQueueDepth;
  attr.max_srq_sge = kMaxSge;
  attr.max_pkeys = 1;
  attr.local_ca_ack_delay = 15;
  attr.phys_port_cnt = 1;
  return attr;
}

ibv_port_attr port_attributes(ibv_context* context) {
  const Context& c = context_of(context);
  const SoftDevice& device = *c.description;
  const Faults* faults =
      c.is_abandoned.load(std::memory_order_relaxed) ? nullptr : c.engine->faults();
  const bool is_down = faults != nullptr && faults->is_down(c.device);
  ibv_port_attr attr{};
  attr.state = is_down ? IBV_PORT_DOWN : IBV_PORT_ACTIVE;
  attr.max_mtu = attr.active_mtu = IBV_MTU_4096;
  attr.gid_tbl_len = 1;
  attr.port_cap_flags = IBV_PORT_CM_SUP;
  attr.max_msg_sz = static_cast<uint32_t>(device.max_message);
  attr.pkey_tbl_len = 1;
  attr.max_vl_num = 1;
  attr.active_width = width_code(device.width);
  attr.active_speed = speed_code(device.rate_gbit / device.width);
  attr.phys_state = is_down ? 2 : 5;  // polling for a link, link up
  attr.lid = static_cast<uint16_t>(own_address(context).lid);
  attr.sm_lid = device.is_infiniband ? 1 : 0;
  attr.link_layer = device.is_infiniband ? IBV_LINK_LAYER_INFINIBAND : IBV_LINK_LAYER_ETHERNET;
  return attr;
}

ibv_gid port_gid(ibv_context* context) {
  ibv_gid gid;
  std::memcpy(gid.raw, own_address(context).gid, sizeof gid.raw);
  return gid;
}

ibv_gid_type gid_type(ibv_context* context) {
  return context_of(context).description->is_infiniband ? IBV_GID_TYPE_IB : IBV_GID_TYPE_ROCE_V2;
}

VerbsStats port_stats(Engine& engine, uint32_t device) {
  const Moved ours = engine.moved(device);
  Moved theirs = engine.neighbours().inbound(device);
  theirs += engine.taken(device);
  VerbsStats stats;
  stats.sent_bytes = ours.written_bytes + theirs.read_bytes;
  stats.sent_messages = ours.written_messages + theirs.read_messages;
  stats.received_bytes = ours.read_bytes + theirs.written_bytes;
  stats.received_messages = ours.read_messages + theirs.written_messages;
  return stats;
}

}  // namespace noria::soft
