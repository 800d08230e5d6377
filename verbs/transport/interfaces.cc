#include "verbs/transport/interfaces.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <memory>
#include <utility>

#include "base/interface_rule.hpp"

namespace noria::transport {
namespace {

bool is_ipv6(const Interface& interface) { return interface.host.find(':') != std::string::npos; }

bool is_loopback(const Interface& interface) {
  return interface.host.starts_with("127.") || interface.host == "::1";
}

// The numeric address; empty for one of another family, or of this link only.
std::string host_of(const sockaddr& address) {
  char text[INET6_ADDRSTRLEN] = "";
  if (address.sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text, sizeof text);
  } else if (address.sa_family == AF_INET6) {
    const in6_addr& ipv6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    if (!IN6_IS_ADDR_LINKLOCAL(&ipv6)) inet_ntop(AF_INET6, &ipv6, text, sizeof text);
  }
  return text;
}

}  // namespace

std::vector<Interface> list_interfaces() {
  std::vector<Interface> found;
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) return found;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> owner(list, &freeifaddrs);
  for (const ifaddrs* entry = list; entry != nullptr; entry = entry->ifa_next) {
    if (entry->ifa_addr == nullptr || (entry->ifa_flags & IFF_UP) == 0) continue;
    std::string host = host_of(*entry->ifa_addr);
    if (!host.empty()) found.push_back({entry->ifa_name, std::move(host)});
  }
  return found;
}

bool is_interface_asked_for(const Params& params) {
  return !InterfaceRule(params.socket_ifname).is_empty();
}

Result<Interface, std::string> choose_interface(const std::vector<Interface>& interfaces,
                                                const Params& params) {
  const std::string& family = params.socket_family;
  const InterfaceRule rule(params.socket_ifname);
  const Interface* best = nullptr;
  size_t best_rank = SIZE_MAX;
  std::string seen;
  for (const Interface& interface : interfaces) {
    seen += (seen.empty() ? "" : ", ") + interface.name + " " + interface.host;
    if (family == "AF_INET" && is_ipv6(interface)) continue;
    if (family == "AF_INET6" && !is_ipv6(interface)) continue;
    const auto rank = rule.rank(interface.name, is_loopback(interface));
    if (rank && *rank < best_rank) best = &interface, best_rank = *rank;
  }
  if (best != nullptr) return *best;
  std::string asked;
  if (!rule.is_empty())
    asked +=
        variable_of(params, ParamId::socket_ifname) + " asks for '" + params.socket_ifname + "'";
  if (family != "auto")
    asked += (asked.empty() ? "" : " and ") + variable_of(params, ParamId::socket_family) +
             " asks for '" + family + "'";
  if (asked.empty()) return std::string("this host has no network interface that is up");
  return "no interface fits: " + asked + "; there is " + (seen.empty() ? "none" : seen);
}

}  // namespace noria::transport
