#include "verbs/transport/interfaces.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <memory>
#include <string_view>
#include <utility>

namespace noria::transport {
namespace {

bool is_virtual(const std::string& name) {
  for (const char* prefix : {"docker", "virbr", "veth", "br-"})
    if (name.starts_with(prefix)) return true;
  return false;
}

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

struct NameRule {
  std::string_view list;
  bool excludes = false;
  bool is_exact = false;
};

NameRule name_rule(const Params& params) {
  NameRule rule{.list = params.socket_ifname};
  if (rule.list.starts_with('^')) rule.excludes = true, rule.list.remove_prefix(1);
  if (rule.list.starts_with('=')) rule.is_exact = true, rule.list.remove_prefix(1);
  return rule;
}

// The position of the name in the list, so that the order of the list is the order of preference.
size_t position_in(const NameRule& rule, std::string_view name) {
  std::string_view rest = rule.list;
  for (size_t position = 0;; ++position) {
    const size_t comma = rest.find(',');
    const std::string_view entry = rest.substr(0, comma);
    if (!entry.empty() && (rule.is_exact ? name == entry : name.starts_with(entry)))
      return position;
    if (comma == std::string_view::npos) return SIZE_MAX;
    rest.remove_prefix(comma + 1);
  }
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

bool is_interface_asked_for(const Params& params) { return !name_rule(params).list.empty(); }

Result<Interface, std::string> choose_interface(const std::vector<Interface>& interfaces,
                                                const Params& params) {
  const std::string& family = params.socket_family;
  const NameRule rule = name_rule(params);
  const Interface* best = nullptr;
  size_t best_rank = SIZE_MAX;
  std::string seen;
  for (const Interface& interface : interfaces) {
    seen += (seen.empty() ? "" : ", ") + interface.name + " " + interface.host;
    if (family == "AF_INET" && is_ipv6(interface)) continue;
    if (family == "AF_INET6" && !is_ipv6(interface)) continue;
    size_t rank = 0;
    const bool prefers_by_kind = rule.list.empty() || rule.excludes;
    if (!rule.list.empty()) {
      const size_t position = position_in(rule, interface.name);
      if ((position == SIZE_MAX) != rule.excludes) continue;
      rank = rule.excludes ? 0 : position;
    }
    if (prefers_by_kind) rank = is_loopback(interface) ? 2 : is_virtual(interface.name) ? 1 : 0;
    if (rank < best_rank) best = &interface, best_rank = rank;
  }
  if (best != nullptr) return *best;
  std::string asked;
  if (!rule.list.empty())
    asked +=
        variable_of(params, ParamId::socket_ifname) + " asks for '" + params.socket_ifname + "'";
  if (family != "auto")
    asked += (asked.empty() ? "" : " and ") + variable_of(params, ParamId::socket_family) +
             " asks for '" + family + "'";
  if (asked.empty()) return std::string("this host has no network interface that is up");
  return "no interface fits: " + asked + "; there is " + (seen.empty() ? "none" : seen);
}

}  // namespace noria::transport
