// Which address of this host the control sockets use.
//
// NORIA_SOCKET_IFNAME, else NCCL_SOCKET_IFNAME, is a list of interface names or prefixes; a leading
// '=' asks for whole names, a leading '^' for all others. NCCL_SOCKET_FAMILY takes AF_INET or
// AF_INET6. Without them: the first that is neither virtual nor the loopback, then virtual ones
// (docker, virbr, veth), then the loopback. choose_interface() is pure.
//
// Threads: any thread.
#pragma once

#include <string>
#include <vector>

#include "base/params.hpp"
#include "base/result.hpp"
#include "bucketing/tcp.hpp"

namespace noria::bucketing {

struct Interface {
  std::string name;
  TcpAddress address;
};

std::vector<Interface> list_interfaces();  // those that are up, link-local addresses apart

// The failure names what was asked for and what there is.
Result<Interface, std::string> choose_interface(const std::vector<Interface>& interfaces,
                                                const Params& params);
bool is_interface_asked_for(const Params& params);

}  // namespace noria::bucketing
