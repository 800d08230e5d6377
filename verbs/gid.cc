#include "verbs/gid.hpp"

#include <arpa/inet.h>

#include <algorithm>
#include <array>
#include <cstring>

namespace noria::verbs {
namespace {

// A GID's subnet prefix: 10 fixed bits, 22 of zero, 16 of FLID, 16 of the subnet.
constexpr size_t kPrefixBytes = 8, kFlidOffset = 4;
constexpr uint32_t kFlidRow = 1;

bool is_link_local(const Gid& gid) { return gid[0] == 0xfe && (gid[1] & 0xc0) == 0x80; }

GidType wanted_type(const GidRules& rules) {
  return rules.roce_version == 1 ? GidType::roce_v1 : GidType::roce_v2;
}

// Higher fits better.
int fit(const GidRow& row, const GidRules& rules) {
  return (is_ipv4(row.gid) != rules.prefers_ipv6 ? 4 : 0) +
         (row.type == wanted_type(rules) ? 2 : 0) + (is_link_local(row.gid) ? 0 : 1);
}

std::string text_of(std::span<const GidRow> rows) {
  std::string text;
  for (const GidRow& row : rows)
    text += (text.empty() ? "" : ", ") + std::to_string(row.index) + " " + to_string(row.gid) +
            " (" + to_string(row.type) + ")";
  return text.empty() ? "none" : text;
}

const GidRow* row_of(std::span<const GidRow> rows, uint32_t index) {
  const auto found = std::find_if(rows.begin(), rows.end(),
                                  [index](const GidRow& row) { return row.index == index; });
  return found == rows.end() ? nullptr : &*found;
}

GidRow choose_for_infiniband(std::span<const GidRow> rows) {
  const GidRow* const routed = row_of(rows, kFlidRow);
  if (routed != nullptr && flid_of(routed->gid) != 0) return *routed;
  const GidRow* const first = row_of(rows, 0);
  return first != nullptr ? *first : GidRow{};
}

}  // namespace

Result<GidRow, std::string> choose_gid(std::span<const GidRow> rows, bool is_ethernet,
                                       const GidRules& rules) {
  if (!is_ethernet) return choose_for_infiniband(rows);
  if (rules.index) {
    if (const GidRow* const asked = row_of(rows, *rules.index); asked != nullptr) return *asked;
    return "GID " + std::to_string(*rules.index) + " is not set; there is " + text_of(rows);
  }
  const GidRow* best = nullptr;
  for (const GidRow& row : rows) {
    if (rules.range && !rules.range->contains(row.gid.data())) continue;
    if (best == nullptr || fit(row, rules) > fit(*best, rules)) best = &row;
  }
  if (best != nullptr) return *best;
  if (rules.range && rules.range_is_wish) {
    GidRules others = rules;
    others.range.reset();
    return choose_gid(rows, is_ethernet, others);
  }
  return (rules.range ? "no GID lies in the address range; there is "
                      : "no GID is set; there is ") +
         text_of(rows);
}

std::string to_string(const Gid& gid) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const bool is_v4 = is_ipv4(gid);
  inet_ntop(is_v4 ? AF_INET : AF_INET6, gid.data() + (is_v4 ? 12 : 0), text.data(), text.size());
  return text.data();
}

const char* to_string(GidType type) {
  switch (type) {
    case GidType::infiniband: return "InfiniBand";
    case GidType::roce_v1: return "RoCE v1";
    case GidType::roce_v2: return "RoCE v2";
    case GidType::unknown: return "unknown type";
  }
  return "unknown type";
}

bool is_set(const Gid& gid) {
  constexpr std::array<uint8_t, 8> kZero{};
  const bool has_interface =
      std::memcmp(gid.data() + kPrefixBytes, kZero.data(), kZero.size()) != 0;
  const bool has_prefix = std::memcmp(gid.data(), kZero.data(), kZero.size()) != 0;
  return has_interface || (has_prefix && !is_link_local(gid));
}

bool is_ipv4(const Gid& gid) {
  constexpr std::array<uint8_t, 12> kPrefix{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};
  return std::memcmp(gid.data(), kPrefix.data(), kPrefix.size()) == 0;
}

bool is_same_subnet(const Gid& a, const Gid& b) {
  const size_t behind = kFlidOffset + sizeof(uint16_t);
  return std::memcmp(a.data(), b.data(), kFlidOffset) == 0 &&
         std::memcmp(a.data() + behind, b.data() + behind, kPrefixBytes - behind) == 0;
}

uint16_t flid_of(const Gid& gid) {
  return static_cast<uint16_t>(gid[kFlidOffset] << 8 | gid[kFlidOffset + 1]);
}

}  // namespace noria::verbs
