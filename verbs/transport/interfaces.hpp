// Which address of this host the control sockets use.
//
// NORIA_SOCKET_IFNAME is a list of interface names or prefixes; a leading '=' asks for whole names,
// a leading '^' for all others. NORIA_SOCKET_FAMILY takes AF_INET or AF_INET6. Without them: the
// first that is neither virtual nor the loopback, then virtual ones (docker, virbr, veth), then the
// loopback. choose_interface() is pure.
//
// Threads: any thread.
#pragma once

#include <string>
#include <vector>

#include "base/params.hpp"
#include "base/result.hpp"

namespace noria::transport {

struct Interface {
  std::string name;
  std::string host;  // a numeric IPv4 or IPv6 address
};

std::vector<Interface> list_interfaces();  // those that are up, link-local addresses apart

// The failure names what was asked for and what there is.
Result<Interface, std::string> choose_interface(const std::vector<Interface>& interfaces,
                                                const Params& params);
bool is_interface_asked_for(const Params& params);

}  // namespace noria::transport
