// Devices: which ports there are, and one port opened for use.
//
// list_ports() opens each device for a moment to ask about its ports. open_port() keeps the device
// open, with a protection domain; both close with the last copy of the object.
//
// Threads: init only; ask_again() and is_port_active() any thread, one at a time for an object.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "verbs/handle.hpp"
#include "verbs/provider.hpp"

namespace noria::verbs {

struct OpenPort {
  std::shared_ptr<ibv_context> context;
  std::shared_ptr<ibv_pd> pd;
  PortInfo info;
  ibv_port_attr attr{};
  ibv_device_attr limits{};
  ibv_gid gid{};  // of index gid_index; on Ethernet the one to reach us by
  uint8_t gid_index = 0;
  uint16_t pkey_index = 0;
};

// What a library shows.
struct PortList {
  std::vector<PortInfo> ports;  // empty where there is none or the kernel has no RDMA
  // A line for each device that is there and of which no port is listed, as "mlx5_0 cannot be
  // opened: Permission denied; ...", or for all where they cannot be listed.
  std::vector<std::string> refused;
};
PortList list_ports(const Api& api, const PortRules& rules);

// A port that has come not to fulfil the provider's rules is as good as down.
Result<OpenPort> open_port(const Provider& provider, const PortInfo& port);

// Asks the device anew how the port is reached: link, GID and partition key. Where it fails nothing
// has changed.
Status ask_again(const Provider& provider, OpenPort* port);

// Asks the device anew whether the port is active; true where it does not say. Enters the kernel.
bool is_port_active(const Api& api, const OpenPort& port);

// From the numbers of ibv_port_attr for the speed of a lane, SDR to XDR, and how many there are; 0
// where one is not known.
uint32_t speed_mbps(uint32_t speed, uint8_t width);

}  // namespace noria::verbs
