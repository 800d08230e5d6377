// Devices: what NCCL is told of each active port.
//
// pci_path_of() and guid_of() read a device's folder in sysfs, or in the software HCA's own tree;
// what is not there is empty or 0, which NCCL takes as not known.
//
// Threads: init only; the result is immutable.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "plugin/abi/properties.hpp"
#include "plugin/gpu_memory.hpp"
#include "verbs/provider.hpp"

namespace noria::plugin {

// What every plugin must take in one message.
inline constexpr size_t kMaxMessageBytes = size_t{1} << 30;

struct Device {
  verbs::PortInfo port;
  std::string name;      // "mlx5_0"; "mlx5_0:2" where several ports of a device are active
  std::string pci_path;  // of the adapter's first function; empty when it is no PCI device
  uint64_t guid = 0;     // of the device; together with the port it tells ports apart
  GpuMemory gpu_memory;
  Flushing flushing = Flushing::never;
};

std::vector<Device> list_devices(const verbs::Provider& provider);

std::string pci_path_of(const std::string& sysfs_path);
uint64_t guid_of(const std::string& sysfs_path);

// Writes every field of the version's struct. `device` stays where it is as long as NCCL knows it.
template <class Properties>
void describe(const Device& device, int index, Properties* out) {
  // NCCL's structs have no const, and NCCL writes to neither.
  out->name = const_cast<char*>(device.name.c_str());
  out->pci_path = device.pci_path.empty() ? nullptr : const_cast<char*>(device.pci_path.c_str());
  out->guid = device.guid;
  out->pointers = abi::kPointerHost | (device.gpu_memory.by_address ? abi::kPointerCuda : 0) |
                  (device.gpu_memory.by_descriptor ? abi::kPointerDmabuf : 0);
  out->speed_mbps = device.port.speed_mbps != 0 ? static_cast<int>(device.port.speed_mbps) : 10'000;
  out->port = device.port.port;
  out->latency_us = 0;
  out->max_connections = 65536;  // bounded by the device's queue pairs, not by us
  out->max_receives = abi::kMostReceives;
  if constexpr (requires { out->is_registration_global; }) out->is_registration_global = 1;
  if constexpr (requires { out->needs_flush; })
    out->needs_flush = device.flushing == Flushing::always ? 1 : 0;
  if constexpr (requires { out->device_type; }) {
    out->device_type = abi::kDeviceHost;
    out->device_version = 0;
  }
  if constexpr (requires { out->parts; }) {
    out->parts = {};
    out->parts.count = 1;
    out->parts.devices[0] = index;
    out->max_message_bytes = kMaxMessageBytes;
    out->max_collective_bytes = kMaxMessageBytes;
  }
  if constexpr (requires { out->max_requests_in_one; }) out->max_requests_in_one = 1;
  if constexpr (requires { out->rail; }) {
    out->rail = -1;
    out->plane = -1;
  }
}

}  // namespace noria::plugin
