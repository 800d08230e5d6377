#include "verbs/port_path.hpp"

#include <endian.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <string_view>

namespace noria::verbs {
namespace {

constexpr uint16_t kFullMember = 0x8000;

// Where the library cannot say, the kernel's own words in sysfs.
GidType type_in_sysfs(const ibv_device& device, uint8_t port, uint32_t index) {
  if (device.ibdev_path[0] == '\0') return GidType::unknown;
  const std::string path = std::string(device.ibdev_path) + "/ports/" + std::to_string(port) +
                           "/gid_attrs/types/" + std::to_string(index);
  std::array<char, 32> text{};
  std::FILE* const file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return GidType::unknown;
  const size_t length = std::fread(text.data(), 1, text.size(), file);
  std::fclose(file);
  const std::string_view word(text.data(), length);
  return word.starts_with("RoCE v2")      ? GidType::roce_v2
         : word.starts_with("IB/RoCE v1") ? GidType::roce_v1
                                          : GidType::unknown;
}

GidType type_of(const Api& api, ibv_context* context, uint8_t port, uint32_t index) {
  ibv_gid_entry entry{};
  const Status asked = api.probe<&Symbols::query_gid_ex>(
      context, context, static_cast<uint32_t>(port), index, &entry, 0u, sizeof entry);
  if (!asked.is_ok()) return type_in_sysfs(*context->device, port, index);
  switch (entry.gid_type) {
    case IBV_GID_TYPE_ROCE_V2: return GidType::roce_v2;
    case IBV_GID_TYPE_ROCE_V1: return GidType::roce_v1;
    default: return GidType::infiniband;
  }
}

std::vector<GidRow> read_gids(const Api& api, ibv_context* context, uint8_t port,
                              const ibv_port_attr& attr) {
  std::vector<GidRow> rows;
  const int length = std::min(attr.gid_tbl_len, 256);  // grh.sgid_index has 8 bits
  for (int i = 0; i < length; ++i) {
    ibv_gid gid{};
    if (!api.probe<&Symbols::query_gid>(context, context, port, i, &gid).is_ok()) break;
    GidRow row{.index = static_cast<uint32_t>(i)};
    std::memcpy(row.gid.data(), gid.raw, row.gid.size());
    if (!is_set(row.gid)) continue;
    row.type = type_of(api, context, port, row.index);
    rows.push_back(row);
  }
  return rows;
}

std::vector<uint16_t> read_pkeys(const Api& api, ibv_context* context, uint8_t port,
                                 const ibv_port_attr& attr) {
  std::vector<uint16_t> table;
  for (int i = 0; i < attr.pkey_tbl_len; ++i) {
    __be16 pkey = 0;
    if (!api.probe<&Symbols::query_pkey>(context, context, port, i, &pkey).is_ok()) break;
    table.push_back(be16toh(pkey));
  }
  return table;
}

std::string hex(uint16_t value) {
  std::array<char, 8> text{};
  std::snprintf(text.data(), text.size(), "0x%04x", value);
  return text.data();
}

std::string missing_pkey(const std::vector<uint16_t>& table, const PortRules& rules) {
  std::string text = rules.pkey
                         ? "partition key " + hex(*rules.pkey) + " is not in the port's table"
                         : "the partition key table has no row " + std::to_string(rules.pkey_index);
  text += "; there is";
  for (size_t i = 0; i < table.size(); ++i)
    if (table[i] != 0) text += " " + std::to_string(i) + ":" + hex(table[i]);
  return text + " (row:key)";
}

}  // namespace

bool has_gid(const Api& api, ibv_context* context, uint8_t port, const ibv_port_attr& attr) {
  return !read_gids(api, context, port, attr).empty();
}

std::optional<uint16_t> find_pkey(const std::vector<uint16_t>& table, uint16_t pkey) {
  std::optional<uint16_t> found;
  for (size_t i = 0; i < table.size(); ++i) {
    if (((table[i] ^ pkey) & ~kFullMember) != 0 || (table[i] & ~kFullMember) == 0) continue;
    if ((table[i] & kFullMember) != 0) return static_cast<uint16_t>(i);
    if (!found) found = static_cast<uint16_t>(i);
  }
  return found;
}

Result<PortPath, std::string> read_path(const Api& api, ibv_context* context, uint8_t port,
                                        const ibv_port_attr& attr, const PortRules& rules) {
  PortPath path{.pkey_index = rules.pkey_index};
  auto gid = choose_gid(read_gids(api, context, port, attr),
                        attr.link_layer == IBV_LINK_LAYER_ETHERNET, rules.gid);
  if (!gid) return rules.gid_variable + ": " + gid.failure();
  path.gid = *gid;
  if (!rules.pkey && rules.pkey_index == 0) return path;  // a row that every port has
  const std::vector<uint16_t> pkeys = read_pkeys(api, context, port, attr);
  std::optional<uint16_t> row = rules.pkey_index;
  if (rules.pkey) row = find_pkey(pkeys, *rules.pkey);
  if (!row || *row >= pkeys.size() || pkeys[*row] == 0)
    return rules.pkey_variable + ": " + missing_pkey(pkeys, rules);
  path.pkey_index = *row;
  return path;
}

}  // namespace noria::verbs
