#include "verbs/soft/host_address.hpp"

#include <ifaddrs.h>
#include <net/if.h>

#include <utility>

#include "base/interface_rule.hpp"

namespace noria::soft {

in_addr_t choose_address(const std::vector<HostInterface>& interfaces, std::string_view asked) {
  const InterfaceRule rule(asked);
  const HostInterface* best = nullptr;
  std::pair<bool, size_t> best_rank;
  for (const HostInterface& each : interfaces) {
    const auto rank = rule.rank(each.name, false);
    if (!rank) continue;
    const std::pair<bool, size_t> by_wire_and_name{!each.is_plugged_in, *rank};
    if (best != nullptr && by_wire_and_name >= best_rank) continue;
    best = &each;
    best_rank = by_wire_and_name;
  }
  if (best != nullptr) return best->address;
  return rule.is_empty() ? htonl(INADDR_LOOPBACK) : choose_address(interfaces, "");
}

in_addr_t find_host_address(std::string_view asked) {
  std::vector<HostInterface> found;
  ifaddrs* all = nullptr;
  if (::getifaddrs(&all) != 0) return htonl(INADDR_LOOPBACK);
  for (const ifaddrs* each = all; each != nullptr; each = each->ifa_next) {
    if (each->ifa_addr == nullptr || each->ifa_addr->sa_family != AF_INET ||
        (each->ifa_flags & IFF_LOOPBACK) != 0 || (each->ifa_flags & IFF_UP) == 0)
      continue;
    found.push_back({each->ifa_name,
                     reinterpret_cast<const sockaddr_in*>(each->ifa_addr)->sin_addr.s_addr,
                     (each->ifa_flags & IFF_RUNNING) != 0});
  }
  ::freeifaddrs(all);
  return choose_address(found, asked);
}

}  // namespace noria::soft
