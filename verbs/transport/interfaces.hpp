// Which address of this host the control sockets use.
//
// NORIA_SOCKET_IFNAME says of which interfaces (base/interface_rule.hpp), NORIA_SOCKET_FAMILY takes
// AF_INET or AF_INET6. choose_interface() is pure.
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
