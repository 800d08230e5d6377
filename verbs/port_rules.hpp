// PortRules: what the parameters ask of every port.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/params.hpp"
#include "verbs/gid.hpp"

namespace noria::verbs {

struct PortRules {
  GidRules gid;
  std::optional<uint16_t> pkey;  // by value; else the row pkey_index
  uint16_t pkey_index = 0;
  std::string gid_variable, pkey_variable;  // to name when they cannot be fulfilled
};

PortRules port_rules(const Params& params);

}  // namespace noria::verbs
