// Setup: what the plugin found when NCCL first asked: parameters, verbs library, devices,
// tables.
//
// A plugin that cannot serve is off: it has no devices, and one line in NCCL's log that starts
// "noria is off" says why and what to do. NCCL then goes on with its own transport.
//
// Threads: load() init only; afterwards immutable but for the devices, which any thread may fuse.
#pragma once

#include <memory>
#include <string>

#include "base/params.hpp"
#include "plugin/abi/result.hpp"
#include "plugin/devices.hpp"
#include "plugin/tuning.hpp"
#include "verbs/provider.hpp"
#include "verbs/transport/port.hpp"

namespace noria::plugin {

struct Setup {
  Params params;
  std::shared_ptr<const verbs::Provider> provider;  // null when off
  std::string host;                                 // the address at which peers call
  std::unique_ptr<transport::OpenPorts> ports;      // shared by all connections
  // Empty when off; grows when NCCL fuses devices.
  std::unique_ptr<DeviceTable> devices = std::make_unique<DeviceTable>();
  Tuning tuning;  // without rows when off

  static std::shared_ptr<const Setup> load();
  std::string device_names() const;  // "mlx5_0 400 Gb/s, mlx5_1 400 Gb/s"
};

// From now on everything that noria has to say goes to NCCL's log, which filters by NCCL_DEBUG. A
// null logger leaves it on standard error.
void send_log_to(abi::Logger logger);

}  // namespace noria::plugin
