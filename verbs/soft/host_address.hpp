// The IPv4 address by which this host's device is known to other hosts.
//
// Two hosts that have it alike take each other for one, so that a bridge of containers, which looks
// the same everywhere, comes last, and NORIA_SOCKET_IFNAME (base/interface_rule.hpp) decides where
// the first interface is such a one under another name. Never the loopback where there is anything
// else; an interface whose wire is plugged in before all others.
//
// Threads: any thread.
#pragma once

#include <netinet/in.h>

#include <string>
#include <string_view>
#include <vector>

namespace noria::soft {

struct HostInterface {
  std::string name;
  in_addr_t address;  // in network byte order
  bool is_plugged_in = true;
};

// Of those that are up, but the loopback. Where none fits what is asked for, as if nothing were.
in_addr_t choose_address(const std::vector<HostInterface>& interfaces, std::string_view asked);

// Of this host.
in_addr_t find_host_address(std::string_view asked);

}  // namespace noria::soft
