#include "verbs/device.hpp"

#include <cstdio>
#include <cstring>
#include <string>

namespace noria::verbs {
namespace {

// A device list that frees itself.
class DeviceList {
 public:
  explicit DeviceList(const Api& api) : api_(api) {
    int count = 0;
    const auto list = api.probe<&Symbols::get_device_list>(nullptr, &count);
    if (list.is_ok()) list_ = *list, count_ = count;
  }
  ~DeviceList() {
    if (list_ != nullptr) api_.probe<&Symbols::free_device_list>(nullptr, list_);
  }
  DeviceList(const DeviceList&) = delete;
  DeviceList& operator=(const DeviceList&) = delete;

  ibv_device** begin() const { return list_; }
  ibv_device** end() const { return list_ + count_; }

 private:
  const Api& api_;
  ibv_device** list_ = nullptr;
  int count_ = 0;
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

PortInfo describe_port(const ibv_device& device, uint8_t number, const ibv_port_attr& attr) {
  PortInfo info;
  info.device = device.name;
  info.port = number;
  info.is_active = attr.state == IBV_PORT_ACTIVE;
  info.is_ethernet = attr.link_layer == IBV_LINK_LAYER_ETHERNET;
  info.speed_mbps = speed_mbps(attr);
  info.lid = attr.lid;
  info.sysfs_path = device.ibdev_path;
  info.numa_node = read_numa_node(info.sysfs_path);
  return info;
}

bool is_zero(const ibv_gid& gid) {
  static constexpr ibv_gid kZero{};
  return std::memcmp(&gid, &kZero, sizeof gid) == 0;
}

// ::ffff:a.b.c.d, the form of a RoCE address that is routed as IPv4.
bool is_ipv4_mapped(const ibv_gid& gid) {
  static constexpr uint8_t kPrefix[12] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.raw, kPrefix, sizeof kPrefix) == 0;
}

bool is_routable_roce(const Api& api, ibv_context* context, uint8_t port, uint32_t index) {
  ibv_gid_entry entry{};
  const Status asked = api.probe<&Symbols::query_gid_ex>(
      context, context, static_cast<uint32_t>(port), index, &entry, 0u, sizeof entry);
  // Where the type cannot be asked, tables list version 1 before version 2 of the same address, so
  // that taking the last match is right.
  return !asked.is_ok() || entry.gid_type == IBV_GID_TYPE_ROCE_V2;
}

// Ethernet wants the routable (version 2) IPv4 address; else the last entry that is set. InfiniBand
// is addressed by LID and takes entry 0.
void choose_gid(const Api& api, OpenPort& port) {
  const auto length = static_cast<int>(
      port.attr.gid_tbl_len < 256 ? port.attr.gid_tbl_len : 256);  // grh.sgid_index is 8 bits
  bool has_mapped = false;
  for (int i = 0; i < length; ++i) {
    ibv_gid gid{};
    if (!api.probe<&Symbols::query_gid>(port.context.get(), port.context.get(), port.info.port, i,
                                        &gid)
             .is_ok())
      break;
    if (is_zero(gid)) continue;
    const bool is_mapped =
        is_ipv4_mapped(gid) &&
        is_routable_roce(api, port.context.get(), port.info.port, static_cast<uint32_t>(i));
    if (has_mapped && !is_mapped) continue;
    port.gid = gid;
    port.gid_index = static_cast<uint8_t>(i);
    has_mapped = is_mapped;
    if (!port.info.is_ethernet) return;
  }
}

}  // namespace

uint32_t speed_mbps(const ibv_port_attr& attr) {
  uint32_t lane = 0;
  switch (attr.active_speed) {        // powers of two, as the kernel numbers them
    case 1: lane = 2'500; break;      // SDR
    case 2: lane = 5'000; break;      // DDR
    case 4: lane = 10'000; break;     // QDR
    case 8: lane = 10'000; break;     // FDR10
    case 16: lane = 14'000; break;    // FDR
    case 32: lane = 25'000; break;    // EDR
    case 64: lane = 50'000; break;    // HDR
    case 128: lane = 100'000; break;  // NDR
    default: break;
  }
  switch (attr.active_width) {
    case 1: return lane;
    case 2: return lane * 4;
    case 4: return lane * 8;
    case 8: return lane * 12;
    case 16: return lane * 2;
    default: return 0;
  }
}

std::vector<PortInfo> list_ports(const Api& api) {
  std::vector<PortInfo> ports;
  const DeviceList devices(api);
  for (ibv_device* device : devices) {
    auto context = create<Context, &Symbols::open_device>(api, nullptr, device);
    if (!context.is_ok()) continue;  // logged by the call; the other devices still count
    ibv_device_attr limits{};
    if (!api.call<&Symbols::query_device>(context->get(), context->get(), &limits).is_ok())
      continue;
    for (uint8_t number = 1; number <= limits.phys_port_cnt; ++number) {
      ibv_port_attr attr{};
      if (api.query_port(context->get(), number, &attr).is_ok())
        ports.push_back(describe_port(*device, number, attr));
    }
  }
  return ports;
}

Result<OpenPort> open_port(const Api& api, const PortInfo& port) {
  const DeviceList devices(api);
  for (ibv_device* device : devices) {
    if (port.device != device->name) continue;
    OpenPort open;
    NORIA_TRY_ASSIGN(open.context, (create<Context, &Symbols::open_device>(api, nullptr, device)));
    ibv_context* context = open.context.get();
    NORIA_TRY(api.call<&Symbols::query_device>(context, context, &open.limits));
    NORIA_TRY(api.query_port(context, port.port, &open.attr));
    open.info = describe_port(*device, port.port, open.attr);
    choose_gid(api, open);
    NORIA_TRY_ASSIGN(open.pd, (create<Pd, &Symbols::alloc_pd>(api, context, context)));
    return open;
  }
  return Status(Code::device_lost);
}

bool is_port_active(const Api& api, const OpenPort& port) {
  ibv_port_attr now{};
  const Status asked = api.query_port(port.context.get(), port.info.port, &now);
  return !asked.is_ok() || now.state == IBV_PORT_ACTIVE;
}

}  // namespace noria::verbs
