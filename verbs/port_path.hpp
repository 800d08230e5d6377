// How peers reach a port: the rows of its GID and partition key tables that fulfil the rules.
//
// A port on which something that was asked for is not there has no path: one line names the
// variable, what was asked, and what there is.
//
// Threads: read_path() and has_gid() ask the device and are init only; find_pkey() is pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "verbs/api.hpp"
#include "verbs/port_rules.hpp"

namespace noria::verbs {

struct PortPath {
  GidRow gid;
  uint16_t pkey_index = 0;
};

Result<PortPath, std::string> read_path(const Api& api, ibv_context* context, uint8_t port,
                                        const ibv_port_attr& attr, const PortRules& rules);

// Whether an Ethernet port has any GID. Without one nobody reaches it, whatever is asked for: its
// interface has no address, or is in another network namespace.
bool has_gid(const Api& api, ibv_context* context, uint8_t port, const ibv_port_attr& attr);

// The row of a key in a port's table: of this partition, as a full member where it is there twice.
std::optional<uint16_t> find_pkey(const std::vector<uint16_t>& table, uint16_t pkey);

}  // namespace noria::verbs
