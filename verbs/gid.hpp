// Which row of a port's GID table the port is reached by.
//
// choose_gid() is pure and decides as NCCL does: on InfiniBand row 1 where it holds a floating LID
// (FLID), for routed fabrics, else row 0. On Ethernet the row that was asked for; else the first of
// the rows that fit best: in the address range that was asked for, of the family, of the version of
// RoCE, and rather routed than of this link only. A range that is NCCL's is a wish: where no row
// lies in it the others count.
//
// Threads: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>

#include "base/address_range.hpp"
#include "base/result.hpp"

namespace noria::verbs {

using Gid = std::array<uint8_t, 16>;

enum class GidType : uint8_t { unknown, infiniband, roce_v1, roce_v2 };

struct GidRow {
  uint32_t index = 0;
  Gid gid{};
  GidType type = GidType::unknown;
};

struct GidRules {
  std::optional<uint32_t> index;
  bool prefers_ipv6 = false;
  unsigned roce_version = 2;
  std::optional<AddressRange> range;
  bool range_is_wish = false;
};

// Rows that are set, in the order of their indices. The failure names what was asked for and the
// rows there are.
Result<GidRow, std::string> choose_gid(std::span<const GidRow> rows, bool is_ethernet,
                                       const GidRules& rules);

// "10.1.2.3" for an IPv4 address, else as IPv6.
std::string to_string(const Gid& gid);
const char* to_string(GidType type);

bool is_set(const Gid& gid);  // neither zero nor a link-local prefix alone
bool is_ipv4(const Gid& gid);

// On InfiniBand: whether two ports need no router between them, and the FLID in a GID, or 0.
bool is_same_subnet(const Gid& a, const Gid& b);
uint16_t flid_of(const Gid& gid);

}  // namespace noria::verbs
