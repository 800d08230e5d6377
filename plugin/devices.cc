#include "plugin/devices.hpp"

#include <algorithm>
#include <cstdio>

#include "base/pci_address.hpp"
#include "base/real_path.hpp"
#include "verbs/transport/region.hpp"

namespace noria::plugin {

std::string pci_path_of(const std::string& sysfs_path) {
  std::string path = real_path(sysfs_path + "/device");
  if (!is_pci_address(path.substr(path.rfind('/') + 1))) return "";
  // The ports of one adapter are functions of one device, and sit at one place in the topology.
  path.back() = '0';
  return path;
}

uint64_t guid_of(const std::string& sysfs_path) {
  unsigned parts[4] = {};
  std::FILE* file = std::fopen((sysfs_path + "/node_guid").c_str(), "re");
  if (file == nullptr) return 0;
  const int found =
      std::fscanf(file, "%4x:%4x:%4x:%4x", &parts[0], &parts[1], &parts[2], &parts[3]);
  std::fclose(file);
  if (found != 4) return 0;
  uint64_t guid = 0;
  for (const unsigned part : parts) guid = guid << 16 | part;
  return guid;
}

uint32_t Device::speed_mbps() const {
  uint32_t sum = 0;
  for (const verbs::PortInfo& port : ports) sum += port.speed_mbps;
  return sum;
}

namespace {

// What a member says of all ports alike, or -1.
int16_t common(const std::vector<verbs::PortInfo>& ports, int16_t verbs::PortInfo::*member) {
  const auto differs = [&](const verbs::PortInfo& port) {
    return port.*member != ports.front().*member;
  };
  if (std::any_of(ports.begin(), ports.end(), differs)) return -1;
  return ports.front().*member;
}

}  // namespace

int16_t Device::rail() const { return common(ports, &verbs::PortInfo::rail); }
int16_t Device::plane() const { return common(ports, &verbs::PortInfo::plane); }

DeviceTable::DeviceTable(const verbs::Provider& provider) {
  const MutexLock lock(mutex_);
  for (const verbs::PortInfo& port : provider.ports()) {
    if (!port.is_active || devices_.size() == kMostDevices) continue;
    const auto is_sibling = [&port](const verbs::PortInfo& other) {
      return other.is_active && other.device == port.device;
    };
    const bool has_siblings =
        std::count_if(provider.ports().begin(), provider.ports().end(), is_sibling) > 1;
    Device device{.ports = {port},
                  .parts = {static_cast<int>(devices_.size())},
                  .name = port.device + (has_siblings ? ":" + std::to_string(port.port) : ""),
                  .pci_path = pci_path_of(port.sysfs_path),
                  .guid = guid_of(port.sysfs_path)};
    // One that is not known must still differ from the others, or NCCL counts them as one port.
    if (device.guid == 0) device.guid = devices_.size() + 1;
    devices_.push_back(std::move(device));
  }
}

int DeviceTable::count() const {
  const MutexLock lock(mutex_);
  return static_cast<int>(devices_.size());
}

const Device* DeviceTable::find(int index) const {
  const MutexLock lock(mutex_);
  const bool is_there = index >= 0 && static_cast<size_t>(index) < devices_.size();
  return is_there ? &devices_[static_cast<size_t>(index)] : nullptr;
}

void DeviceTable::set_gpu_memory(int index, GpuMemory memory, Flushing flushing) {
  const MutexLock lock(mutex_);
  Device& device = devices_[static_cast<size_t>(index)];
  device.gpu_memory = std::move(memory);
  device.flushing = flushing;
}

std::string DeviceTable::why_not(std::span<const int> parts) const {
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto index = static_cast<size_t>(parts[i]);
    const std::string word = "part " + std::to_string(parts[i]);
    if (parts[i] < 0 || index >= devices_.size())
      return word + ": there are " + std::to_string(devices_.size()) + " devices, counted from 0";
    if (std::count(parts.begin(), parts.end(), parts[i]) > 1) return word + " stands twice";
    const Device& part = devices_[index];
    if (part.ports.size() > 1) return word + ": " + part.name + " is fused already";
    const Device& first = devices_[static_cast<size_t>(parts.front())];
    if (part.ports.front().is_ethernet != first.ports.front().is_ethernet)
      return word + ": " + part.name + " and " + first.name +
             " are of unlike links, InfiniBand and Ethernet";
  }
  return "";
}

Result<int, std::string> DeviceTable::fuse(std::span<const int> parts) {
  static_assert(transport::kMaxRails >= std::size(abi::VirtualDevicesV12{}.devices));
  const MutexLock lock(mutex_);
  if (std::string reason = why_not(parts); !reason.empty()) return reason;
  // Made by another communicator of the process; and a device of one part is that part.
  for (size_t i = 0; i < devices_.size(); ++i)
    if (std::equal(parts.begin(), parts.end(), devices_[i].parts.begin(), devices_[i].parts.end()))
      return static_cast<int>(i);
  if (devices_.size() == kMostDevices)
    return "there are " + std::to_string(kMostDevices) + " devices, which is all that NCCL knows";

  const Device& first = devices_[static_cast<size_t>(parts.front())];
  Device fused{.parts = {parts.begin(), parts.end()},
               .pci_path = first.pci_path,
               .guid = first.guid,
               .gpu_memory = first.gpu_memory};
  for (const int index : parts) {
    const Device& part = devices_[static_cast<size_t>(index)];
    fused.ports.push_back(part.ports.front());
    fused.name += (fused.name.empty() ? "" : "+") + part.name;
    fused.gpu_memory.by_address &= part.gpu_memory.by_address;
    fused.gpu_memory.by_descriptor &= part.gpu_memory.by_descriptor;
    fused.flushing = std::max(fused.flushing, part.flushing);
  }
  devices_.push_back(std::move(fused));
  return static_cast<int>(devices_.size()) - 1;
}

}  // namespace noria::plugin
