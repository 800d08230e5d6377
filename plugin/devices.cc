#include "plugin/devices.hpp"

#include <algorithm>
#include <cctype>
#include <climits>
#include <cstdio>
#include <cstdlib>
#include <memory>

namespace noria::plugin {
namespace {

// "0000:17:00.0"
bool is_pci_address(const std::string& name) {
  static constexpr const char* kForm = "hhhh:hh:hh.h";
  if (name.size() != 12) return false;
  for (size_t i = 0; i < name.size(); ++i)
    if (kForm[i] == 'h' ? std::isxdigit(static_cast<unsigned char>(name[i])) == 0
                        : name[i] != kForm[i])
      return false;
  return true;
}

}  // namespace

std::string pci_path_of(const std::string& sysfs_path) {
  const std::unique_ptr<char, void (*)(void*)> real(
      ::realpath((sysfs_path + "/device").c_str(), nullptr), std::free);
  if (real == nullptr) return "";
  std::string path(real.get());
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

std::vector<Device> list_devices(const verbs::Provider& provider) {
  std::vector<Device> devices;
  for (const verbs::PortInfo& port : provider.ports()) {
    if (!port.is_active) continue;
    const auto is_sibling = [&port](const verbs::PortInfo& other) {
      return other.is_active && other.device == port.device;
    };
    const bool has_siblings =
        std::count_if(provider.ports().begin(), provider.ports().end(), is_sibling) > 1;
    Device device{.port = port,
                  .name = port.device + (has_siblings ? ":" + std::to_string(port.port) : ""),
                  .pci_path = pci_path_of(port.sysfs_path),
                  .guid = guid_of(port.sysfs_path)};
    // One that is not known must still differ from the others, or NCCL counts them as one port.
    if (device.guid == 0) device.guid = devices.size() + 1;
    devices.push_back(std::move(device));
  }
  return devices;
}

}  // namespace noria::plugin
