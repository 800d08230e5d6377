// InterfaceRule: which network interfaces NORIA_SOCKET_IFNAME asks for, and which it prefers.
//
// A list of names or prefixes, in order of preference; a leading '=' asks for whole names, a
// leading '^' for all others. Where nothing is named, or only what is not wanted: first what is
// neither virtual nor the loopback, then virtual ones (docker, virbr, veth, br-), then the
// loopback.
//
// Threads: a value; it refers to the text that it was made of.
#pragma once

#include <cstddef>
#include <optional>
#include <string_view>

namespace noria {

class InterfaceRule {
 public:
  explicit InterfaceRule(std::string_view list) : list_(list) {
    if (list_.starts_with('^')) excludes_ = true, list_.remove_prefix(1);
    if (list_.starts_with('=')) is_exact_ = true, list_.remove_prefix(1);
  }

  bool is_empty() const { return list_.empty(); }

  // 0 is the best; nothing for an interface that is not wanted.
  std::optional<size_t> rank(std::string_view name, bool is_loopback) const {
    const std::optional<size_t> position = list_.empty() ? std::nullopt : position_of(name);
    if (!list_.empty() && position.has_value() == excludes_) return std::nullopt;
    if (position) return position;
    return is_loopback ? 2 : is_virtual(name) ? 1 : 0;
  }

 private:
  static bool is_virtual(std::string_view name) {
    for (const char* prefix : {"docker", "virbr", "veth", "br-"})
      if (name.starts_with(prefix)) return true;
    return false;
  }

  std::optional<size_t> position_of(std::string_view name) const {
    std::string_view rest = list_;
    for (size_t position = 0;; ++position) {
      const size_t comma = rest.find(',');
      const std::string_view entry = rest.substr(0, comma);
      if (!entry.empty() && (is_exact_ ? name == entry : name.starts_with(entry))) return position;
      if (comma == std::string_view::npos) return std::nullopt;
      rest.remove_prefix(comma + 1);
    }
  }

  std::string_view list_;
  bool excludes_ = false;
  bool is_exact_ = false;
};

}  // namespace noria
