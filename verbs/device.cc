#include "verbs/device.hpp"

#include <fcntl.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "verbs/names.hpp"
#include "verbs/port_path.hpp"

#include "verbs/pcie.hpp"

namespace noria::verbs {
namespace {

// A device list that frees itself.
class DeviceList {
 public:
  explicit DeviceList(const Api& api) : api_(api) {
    int count = 0;
    const auto list = api.probe<&Symbols::get_device_list>(nullptr, &count);
    if (list.is_ok())
      list_ = *list, count_ = count;
    else
      refusal_ = list.failure();
  }
  ~DeviceList() {
    if (list_ != nullptr) api_.probe<&Symbols::free_device_list>(nullptr, list_);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

  ibv_device** begin() const { return list_; }
  ibv_device** end() const { return list_ + count_; }
  const Status& refusal() const { return refusal_; }

 private:
  const Api& api_;
  ibv_device** list_ = nullptr;
  int count_ = 0;
  Status refusal_;
};

int read_numa_node(const std::string& sysfs_path) {
  int node = -1;
  if (sysfs_path.empty()) return node;  // the software HCA has no such folder
  const std::string path = sysfs_path + "/device/numa_node";
  if (std::FILE* file = std::fopen(path.c_str(), "re"); file != nullptr) {
    if (std::fscanf(file, "%d", &node) != 1) node = -1;
    std::fclose(file);
  }
  return node;
}

// With the speeds that do not fit into the 8 bits of the plain attributes.
struct WidePortAttr {
  ibv_port_attr attr{};
  uint32_t speed = 0;
};

Status query_wide_port(const Api& api, ibv_context* context, uint8_t port, WidePortAttr* wide) {
  NORIA_TRY(api.query_port(context, port, &wide->attr, &wide->speed));
  if (wide->speed == 0) wide->speed = wide->attr.active_speed;
  return {};
}

// The enumerators count from 256 bytes on, by doubling.
uint32_t mtu_bytes(ibv_mtu mtu) {
  return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << static_cast<unsigned>(mtu) : 0;
}

PortInfo describe_port(const ibv_device& device, uint8_t number, const WidePortAttr& wide) {
  const ibv_port_attr& attr = wide.attr;
  PortInfo info;
  info.device = device.name;
  info.port = number;
  info.state = to_string(attr.state);
  info.is_active = attr.state == IBV_PORT_ACTIVE;
  info.is_ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
  info.speed_mbps = speed_mbps(wide.speed, attr.active_width);
  info.lid = attr.lid;
  info.mtu_bytes = mtu_bytes(attr.active_mtu);
  info.max_mtu_bytes = mtu_bytes(attr.max_mtu);
  info.sysfs_path = device.ibdev_path;
  info.numa_node = read_numa_node(info.sysfs_path);
  if (!info.sysfs_path.empty()) info.pcie_mbps = pcie_mbps(info.sysfs_path + "/device");
  return info;
}

// So that events can be looked for. A library without them has no descriptor either.
void do_not_block(const Api& api, int fd) {
  if (api.symbols().get_async_event == nullptr) return;
  const int flags = fcntl(fd, F_GETFL);
  if (flags >= 0) static_cast<void>(fcntl(fd, F_SETFL, flags | O_NONBLOCK));
}

// With what to try, where the system's own word does not tell it.
std::string why_refused(int error) {
  std::string said = std::strerror(error);  // NOLINT(concurrency-mt-unsafe)
  switch (error) {
    case EMFILE: return said + "; raise the limit of open files (ulimit -n)";
    case EAGAIN: return said + "; raise the limit of processes (ulimit -u), or the container's";
    case EACCES:
    case EPERM: return said + "; this user must be let at its file below /dev/infiniband";
    default: return said;
  }
}

// NCCL's range is a wish; who made it should know that it was not fulfilled.
void say_range_without_gid(const PortInfo& info, const GidRow& gid, const PortRules& rules) {
  const bool is_asked = info.is_ethernet && rules.gid.range && !rules.gid.index;
  if (!is_asked || rules.gid.range->contains(gid.gid.data())) return;
  log(LogLevel::info, "%s: no GID lies in the range of %s: %u, %s, is taken", info.name().c_str(),
      rules.gid_variable.c_str(), gid.index, info.gid.c_str());
}

}  // namespace

uint32_t speed_mbps(uint32_t speed, uint8_t width) {
  uint32_t lane = 0;
  switch (speed) {                    // powers of two, as the kernel numbers them
    case 1: lane = 2'500; break;      // SDR
    case 2: lane = 5'000; break;      // DDR
    case 4: lane = 10'000; break;     // QDR
    case 8: lane = 10'000; break;     // FDR10
    case 16: lane = 14'000; break;    // FDR
    case 32: lane = 25'000; break;    // EDR
    case 64: lane = 50'000; break;    // HDR
    case 128: lane = 100'000; break;  // NDR
    case 256: lane = 200'000; break;  // XDR
    default: break;
  }
  switch (width) {
    case 1: return lane;
    case 2: return lane * 4;
    case 4: return lane * 8;
    case 8: return lane * 12;
    case 16: return lane * 2;
    default: return 0;
  }
}

PortList list_ports(const Api& api, const PortRules& rules) {
  PortList list;
  const DeviceList devices(api);
  // A kernel without RDMA has no devices, which is not said here either.
  if (!devices.refusal().is_ok() && devices.refusal().raw() != ENOSYS)
    list.refused.push_back("its devices cannot be listed: " + why_refused(devices.refusal().raw()));
  for (ibv_device* device : devices) {
    // Logged by the call; the other devices still count.
    const auto refuse = [&](const char* what, Status why) {
      list.refused.push_back(std::string(device->name) + " cannot be " + what + ": " +
                             why_refused(why.raw()));
    };
    auto context = create<Context, &Symbols::open_device>(api, nullptr, device);
    if (!context.is_ok()) {
      refuse("opened", context.failure());
      continue;
    }
    ibv_device_attr limits{};
    const Status asked = api.call<&Symbols::query_device>(context->get(), context->get(), &limits);
    if (!asked.is_ok()) {
      refuse("asked", asked);
      continue;
    }
    for (uint8_t number = 1; number <= limits.phys_port_cnt; ++number) {
      WidePortAttr wide;
      if (!query_wide_port(api, context->get(), number, &wide).is_ok()) continue;
      PortInfo info = describe_port(*device, number, wide);
      const auto path = read_path(api, context->get(), number, wide.attr, rules);
      if (path) {
        info.gid_index = path->gid.index;
        info.gid = to_string(path->gid.gid);
        info.gid_type = to_string(path->gid.type);
        say_range_without_gid(info, path->gid, rules);
      } else if (info.is_ethernet && !has_gid(api, context->get(), number, wide.attr)) {
        info.is_active = false;
        info.state = "without a GID";
      } else {
        info.fault = info.name() + ": " + path.failure();
      }
      list.ports.push_back(std::move(info));
    }
  }
  return list;
}

Result<OpenPort> open_port(const Provider& provider, const PortInfo& port) {
  const Api& api = provider.api();
  const DeviceList devices(api);
  for (ibv_device* device : devices) {
    if (port.device != device->name) continue;
    OpenPort open;
    NORIA_TRY_ASSIGN(Context opened,
                     (create<Context, &Symbols::open_device>(api, nullptr, device)));
    open.context = std::move(opened);
    ibv_context* context = open.context.get();
    NORIA_TRY(api.call<&Symbols::query_device>(context, context, &open.limits));
    open.info.port = port.port;
    // Asked anew: tables change when a link comes back.
    NORIA_TRY(ask_again(provider, &open));
    do_not_block(api, context->async_fd);
    NORIA_TRY_ASSIGN(Pd pd, (create<Pd, &Symbols::alloc_pd>(api, context, context)));
    open.pd = std::move(pd);
    return open;
  }
  return Status(Code::device_lost);
}

Status ask_again(const Provider& provider, OpenPort* port) {
  const Api& api = provider.api();
  ibv_context* const context = port->context.get();
  const uint8_t number = port->info.port;
  WidePortAttr wide;
  NORIA_TRY(query_wide_port(api, context, number, &wide));
  const auto path = read_path(api, context, number, wide.attr, provider.rules());
  if (!path) {
    log(LogLevel::error, "%s port %u: %s", context->device->name, number, path.failure().c_str());
    return Status(Code::port_down);
  }
  port->attr = wide.attr;
  port->info = describe_port(*context->device, number, wide);
  std::memcpy(port->gid.raw, path->gid.gid.data(), sizeof port->gid.raw);
  port->gid_index = static_cast<uint8_t>(path->gid.index);
  port->pkey_index = path->pkey_index;
  return {};
}

bool is_port_active(const Api& api, const OpenPort& port) {
  ibv_port_attr now{};
  const Status asked = api.query_port(port.context.get(), port.info.port, &now);
  return !asked.is_ok() || now.state == IBV_PORT_ACTIVE;
}

}  // namespace noria::verbs
