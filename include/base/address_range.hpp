// A range of IP addresses, "10.1.0.0/16" or "fd00::/8", as GIDs have them: 16 bytes, IPv4 mapped to
// ::ffff:a.b.c.d.
//
// Pure. Bits behind the prefix are not looked at.
//
// Threads: a value.
#pragma once

#include <arpa/inet.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>

#include "base/value_text.hpp"

namespace noria {

struct AddressRange {
  std::array<uint8_t, 16> prefix{};
  unsigned bits = 0;  // of the 16 bytes, also for IPv4

  bool contains(const uint8_t* address) const {
    const unsigned whole = bits / 8, rest = bits % 8;
    if (std::memcmp(address, prefix.data(), whole) != 0) return false;
    if (rest == 0) return true;
    const auto mask = static_cast<uint8_t>(0xff00u >> rest);
    return ((address[whole] ^ prefix[whole]) & mask) == 0;
  }
};

inline std::optional<AddressRange> parse_address_range(std::string_view text) {
  const size_t slash = text.find('/');
  uint64_t bits = 0;
  if (slash == std::string_view::npos || !detail::parse_uint(text.substr(slash + 1), &bits))
    return std::nullopt;
  const std::string address(text.substr(0, slash));
  AddressRange range;
  if (inet_pton(AF_INET, address.c_str(), range.prefix.data() + 12) == 1 && bits <= 32) {
    range.prefix[10] = range.prefix[11] = 0xff;
    bits += 96;
  } else if (inet_pton(AF_INET6, address.c_str(), range.prefix.data()) != 1 || bits > 128) {
    return std::nullopt;
  }
  range.bits = static_cast<unsigned>(bits);
  return range;
}

}  // namespace noria
