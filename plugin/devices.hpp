// Devices: what NCCL is told of: each active port, and those that it fuses.
//
// A fused device has several ports, and a connection over it uses all of them. Its number follows
// those of the ports; it is made when NCCL asks for it, and stays as long as the table. What NCCL
// was told of a device (its name, its path) stays where it is.
//
// pci_path_of() and guid_of() read a device's folder in sysfs, or in the software HCA's own tree;
// what is not there is empty or 0, which NCCL takes as not known.
//
// Threads: DeviceTable any thread; the rest init only.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "base/result.hpp"
#include "plugin/abi/properties.hpp"
#include "plugin/gpu_memory.hpp"
#include "verbs/provider.hpp"

namespace noria::plugin {

// What every plugin must take in one message.
inline constexpr size_t kMaxMessageBytes = size_t{1} << 30;

struct Device {
  std::vector<verbs::PortInfo> ports;  // one, or those of its parts
  std::vector<int> parts;              // numbers of the devices it is made of: itself, or others
  std::string name;      // "mlx5_0"; "mlx5_0:2" where several ports of a device are active; "a+b"
  std::string pci_path;  // of the (first) adapter's first function; empty when it is no PCI device
  uint64_t guid = 0;     // of the (first) device; together with the port it tells ports apart
  // Of a fused device: what all its parts can do, and the most that any of them needs.
  GpuMemory gpu_memory;
  Flushing flushing = Flushing::never;

  uint32_t speed_mbps() const;  // of all ports together
  // Those that NORIA_HCA says of all its ports alike; else -1, not known.
  int16_t rail() const;
  int16_t plane() const;
};

class DeviceTable {
 public:
  // NCCL knows no more than this, fused ones included.
  static constexpr size_t kMostDevices = 256;

  DeviceTable() = default;
  explicit DeviceTable(const verbs::Provider& provider);  // its active ports

  int count() const NORIA_EXCLUDES(mutex_);
  // Null when there is none of this number. Stays where it is.
  const Device* find(int index) const NORIA_EXCLUDES(mutex_);
  // Before NCCL is told of any: how a port that is not fused reaches GPU memory.
  void set_gpu_memory(int index, GpuMemory memory, Flushing flushing) NORIA_EXCLUDES(mutex_);
  // The number of the device that is made of these, one at least; the same again when it is there
  // already. The failure is a line: unknown, twice the same, fused already, or unlike links.
  Result<int, std::string> fuse(std::span<const int> parts) NORIA_EXCLUDES(mutex_);

 private:
  std::string why_not(std::span<const int> parts) const NORIA_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::deque<Device> devices_ NORIA_GUARDED_BY(mutex_);  // grows without moving what is there
};

std::string pci_path_of(const std::string& sysfs_path);
uint64_t guid_of(const std::string& sysfs_path);

// Writes every field of the version's struct. `device` stays where it is as long as NCCL knows it.
template <class Properties>
void describe(const Device& device, Properties* out) {
  // NCCL's structs have no const, and NCCL writes to neither.
  out->name = const_cast<char*>(device.name.c_str());
  out->pci_path = device.pci_path.empty() ? nullptr : const_cast<char*>(device.pci_path.c_str());
  out->guid = device.guid;
  out->pointers = abi::kPointerHost | (device.gpu_memory.by_address ? abi::kPointerCuda : 0) |
                  (device.gpu_memory.by_descriptor ? abi::kPointerDmabuf : 0);
  const uint32_t speed_mbps = device.speed_mbps();
  out->speed_mbps = speed_mbps != 0 ? static_cast<int>(speed_mbps) : 10'000;
  out->port = device.ports.front().port;
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
    // A device of more parts than this version knows was made through the table of a newer one.
    const size_t known = std::min(device.parts.size(), std::size(out->parts.devices));
    out->parts.count = static_cast<int>(known);
    std::copy_n(device.parts.begin(), known, out->parts.devices);
    out->max_message_bytes = kMaxMessageBytes;
    out->max_collective_bytes = kMaxMessageBytes;
  }
  if constexpr (requires { out->max_requests_in_one; }) out->max_requests_in_one = 1;
  if constexpr (requires { out->rail; }) {
    out->rail = device.rail();
    out->plane = device.plane();
  }
}

}  // namespace noria::plugin
