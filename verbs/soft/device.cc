#include "verbs/soft/device.hpp"

#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <new>

#include "base/log.hpp"
#include "base/verbs_extensions.hpp"
#include "verbs/soft/operations.hpp"

namespace noria::soft {
namespace {

// ibv_device is the head of a larger, private structure in every verbs library.
constexpr size_t kDeviceRoom = 4096;
struct Device : ibv_device {
  uint8_t room[kDeviceRoom - sizeof(ibv_device)];
};

// What this process has open.
struct Process {
  Mutex mutex;
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

bool load_parameters(Process& p) NORIA_REQUIRES(p.mutex) {
  if (p.params != nullptr) return true;
  auto params = load_params(environ);
  if (!params.is_ok()) {
    log(LogLevel::error, "%s", params.failure().c_str());
    return false;
  }
  p.params = std::make_unique<Params>(std::move(params).value());
  return true;
}

in_addr_t first_address() {
  ifaddrs* all = nullptr;
  in_addr_t found = htonl(INADDR_LOOPBACK);
  if (::getifaddrs(&all) != 0) return found;
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET ||
        (each->ifa_flags & IFF_LOOPBACK) != 0 || (each->ifa_flags & IFF_UP) == 0)
      continue;
    found = reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr.s_addr;
    break;
  }
  ::freeifaddrs(all);
  return found;
}

}  // namespace

const ibv_gid& port_gid() {
  // RoCE: the IPv4 address of this host, mapped into IPv6.
  static const ibv_gid the_gid = [] {
    ibv_gid gid{};
    gid.raw[10] = gid.raw[11] = 0xff;
    const in_addr_t address = first_address();
    std::memcpy(gid.raw + 12, &address, sizeof address);
    return gid;
  }();
  return the_gid;
}

const char* device_path() { return ""; }

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

ibv_device** list_devices(int* count) {
  Process& p = process();
  MutexLock lock(p.mutex);
  if (count != nullptr) *count = 0;
  if (!load_parameters(p)) {
    errno = EINVAL;
    return nullptr;
  }
  auto** list = static_cast<ibv_device**>(std::calloc(2, sizeof(void*)));
  static Device the_device{};
  the_device.node_type = IBV_NODE_CA;
  the_device.transport_type = IBV_TRANSPORT_IB;
  std::snprintf(the_device.name, sizeof the_device.name, "noria0");
  std::snprintf(the_device.dev_name, sizeof the_device.dev_name, "uverbs_noria0");
  std::snprintf(the_device.ibdev_path, sizeof the_device.ibdev_path, "%s", device_path());
  if (list == nullptr) return nullptr;
  list[0] = &the_device;
  if (count != nullptr) *count = 1;
  return list;
}

void free_device_list(ibv_device** list) { std::free(list); }

ibv_context* open_device(ibv_device* device) {
  Process& p = process();
  MutexLock lock(p.mutex);
  if (!load_parameters(p)) {
    errno = EINVAL;
    return nullptr;
  }
  Fd events(::eventfd(0, EFD_CLOEXEC | EFD_SEMAPHORE));
  if (!events.is_open()) return nullptr;  // errno says why
  if (p.engine == nullptr) p.engine = Engine::start(*p.params);
  if (p.engine == nullptr) {
    errno = ENODEV;
    return nullptr;
  }
  if (!p.is_fork_watched) pthread_atfork(nullptr, nullptr, &on_forked_child);
  p.is_fork_watched = true;
  auto context = std::make_unique<Context>();
  context->engine = p.engine.get();
  context->context.device = device;
  context->context.cmd_fd = -1;
  context->context.async_fd = events.release();
  context->context.num_comp_vectors = 1;
  context->opened_at = port_stats(*p.engine);
  pthread_mutex_init(&context->context.mutex, nullptr);
  fill_operations(*context);
  p.contexts.push_back(context.get());
  return &context.release()->context;
}

int close_device(ibv_context* context) {
  Process& p = process();
  Context* c = &context_of(context);
  MutexLock lock(p.mutex);
  std::erase(p.contexts, c);
  ::close(context->async_fd);
  if (!c->is_abandoned.load(std::memory_order_relaxed) && p.contexts.empty()) {
    if (!p.engine->is_empty())
      log(LogLevel::info, "software HCA: closed with queues still open; they end here");
    p.engine.reset();
  }
  delete c;
  return 0;
}

ibv_device_attr device_attributes() {
  ibv_device_attr attr{};
  std::snprintf(attr.fw_ver, sizeof attr.fw_ver, "noria-soft");
  attr.node_guid = attr.sys_image_guid = node_guid();
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

ibv_port_attr port_attributes() {
  ibv_port_attr attr{};
  attr.state = IBV_PORT_ACTIVE;
  attr.max_mtu = attr.active_mtu = IBV_MTU_4096;
  attr.gid_tbl_len = 1;
  attr.port_cap_flags = IBV_PORT_CM_SUP;
  attr.max_msg_sz = 1u << 30;
  attr.pkey_tbl_len = 1;
  attr.max_vl_num = 1;
  attr.active_width = 2;    // 4 lanes
  attr.active_speed = 128;  // of 100 Gbit/s: the NDR port that noria is made for
  attr.phys_state = 5;      // link up
  attr.link_layer = IBV_LINK_LAYER_ETHERNET;
  return attr;
}

uint64_t node_guid() {
  uint64_t guid = 0;
  std::memcpy(&guid, port_gid().raw + 8, sizeof guid);
  return guid;
}

VerbsStats port_stats(Engine& engine) {
  VerbsStats stats;
  constexpr auto kRelaxed = std::memory_order_relaxed;  // counters order nothing
  for (const Traffic& each : engine.shared().header.traffic) {
    stats.sent_bytes += each.written_bytes.load(kRelaxed);
    stats.sent_messages += each.written_messages.load(kRelaxed);
    stats.received_bytes += each.read_bytes.load(kRelaxed);
    stats.received_messages += each.read_messages.load(kRelaxed);
  }
  const Neighbours::Inbound inbound = engine.neighbours().inbound();
  stats.received_bytes += inbound.written_bytes;
  stats.received_messages += inbound.written_messages;
  stats.sent_bytes += inbound.read_bytes;
  stats.sent_messages += inbound.read_messages;
  return stats;
}

}  // namespace noria::soft
