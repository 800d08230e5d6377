// Which ports of which devices are used, in the words of NORIA_HCA and NCCL_IB_HCA:
//
//   mlx5            devices whose name starts so         mlx5_0:1        of them port 1
//   =mlx5_0,mlx5_1  devices of these names               ^mlx5_bond      all others
//   ^=mlx5_2:1      all but this port                    mlx5_0:1:0:2    NCCL 2.30's rail and plane
//
// Entries are separated by commas; blanks around them and empty ones are passed over, as NCCL does.
// Strict otherwise: the failure is one line that names the entry and what is wrong with it. An
// empty text takes every port. Pure.
//
// Threads: any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "base/value_text.hpp"

namespace noria {

class HcaFilter {
 public:
  struct Entry {
    std::string name;           // or the beginning of one
    std::optional<int> port;    // none: any
    int rail = -1, plane = -1;  // -1: not said
  };

  static Result<HcaFilter, std::string> parse(std::string_view text);

  bool takes_all() const { return entries_.empty(); }
  bool takes(std::string_view device, int port) const {
    return takes_all() || (entry_of(device, port) != nullptr) != excludes_;
  }
  // The entry that says the port's rail and plane; null where none names it, or all are excluded.
  const Entry* says(std::string_view device, int port) const {
    return excludes_ ? nullptr : entry_of(device, port);
  }

 private:
  const Entry* entry_of(std::string_view device, int port) const {
    const auto found = std::find_if(entries_.begin(), entries_.end(), [&](const Entry& entry) {
      const bool is_named = is_exact_ ? device == entry.name : device.starts_with(entry.name);
      return is_named && (!entry.port || *entry.port == port);
    });
    return found == entries_.end() ? nullptr : &*found;
  }

  std::vector<Entry> entries_;
  bool excludes_ = false, is_exact_ = false;
};

namespace detail {

// Empty, or what is wrong with the entry.
inline std::string parse_hca_entry(std::string_view text, HcaFilter::Entry* out) {
  out->name = take_until(&text, ':');
  if (out->name.empty()) return "it has no device";
  constexpr std::array<std::string_view, 3> kParts{"port", "rail", "plane"};
  constexpr std::array<uint64_t, 3> kLeast{1, 0, 0};
  for (size_t i = 0; i < kParts.size() && !text.empty(); ++i) {
    uint64_t number = 0;
    if (!parse_uint(take_until(&text, ':'), &number) || number < kLeast[i] || number > 255)
      return "its " + std::string(kParts[i]) + " is no number from " + std::to_string(kLeast[i]) +
             " to 255";
    if (i == 0) out->port = static_cast<int>(number);
    if (i == 1) out->rail = static_cast<int>(number);
    if (i == 2) out->plane = static_cast<int>(number);
  }
  return text.empty() ? "" : "it has more than device, port, rail and plane";
}

}  // namespace detail

inline Result<HcaFilter, std::string> HcaFilter::parse(std::string_view text) {
  HcaFilter filter;
  std::string_view rest = detail::trimmed(text);
  if (rest.starts_with('^')) filter.excludes_ = true, rest = detail::trimmed(rest.substr(1));
  if (rest.starts_with('=')) filter.is_exact_ = true, rest.remove_prefix(1);
  while (!rest.empty()) {
    const std::string_view word = detail::take_until(&rest, ',');
    if (word.empty()) continue;
    Entry entry;
    if (const std::string wrong = detail::parse_hca_entry(word, &entry); !wrong.empty())
      return "'" + printable(std::string(word)) + "': " + wrong;
    filter.entries_.push_back(std::move(entry));
  }
  if (filter.entries_.empty() && (filter.excludes_ || filter.is_exact_))
    return std::string("it names no device");
  return filter;
}

}  // namespace noria
