#include "verbs/port_rules.hpp"

namespace noria::verbs {

PortRules port_rules(const Params& params) {
  PortRules rules{.gid = {.prefers_ipv6 = params.address_family == "AF_INET6",
                          .roce_version = static_cast<unsigned>(params.roce_version),
                          .range = parse_address_range(params.address_range)},
                  .pkey_index = static_cast<uint16_t>(params.pkey_index)};
  rules.gid.range_is_wish =
      params.sources[static_cast<size_t>(ParamId::address_range)] == ParamSource::nccl;
  if (params.gid_index) rules.gid.index = static_cast<uint32_t>(*params.gid_index);
  if (params.pkey) rules.pkey = static_cast<uint16_t>(*params.pkey);
  rules.gid_variable =
      variable_of(params, rules.gid.index ? ParamId::gid_index : ParamId::address_range);
  rules.pkey_variable = variable_of(params, rules.pkey ? ParamId::pkey : ParamId::pkey_index);
  return rules;
}

}  // namespace noria::verbs
