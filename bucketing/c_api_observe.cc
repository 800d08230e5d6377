// The C functions of observe.h that look at parameters, counters and communicators.
#include <noria/observe.h>

#include <cstdio>
#include <string>

#include "base/counters.hpp"
#include "base/params.hpp"
#include "bucketing/c_boundary.hpp"
#include "bucketing/comm.hpp"

extern char** environ;

using namespace noria::bucketing;  // NOLINT: this file is where the C names are made of these

noria_status noria_observe_param(uint32_t index, noria_param_info* info) {
  const auto params = noria::load_params(environ);
  if (!params) return refuse({NORIA_E_ARG, params.failure()});
  const auto rows = noria::param_rows(*params);
  if (index >= rows.size())
    return refuse({NORIA_E_ARG, "noria_observe_param: index " + std::to_string(index) +
                                    " is past the last of " + std::to_string(rows.size()) +
                                    " parameters"});
  const noria::ParamRow& row = rows[index];
  noria_param_info full{};
  full.is_default = row.is_default ? 1 : 0;
  std::snprintf(full.name, sizeof full.name, "%s", row.name);
  std::snprintf(full.value, sizeof full.value, "%s", row.value.c_str());
  std::snprintf(full.default_value, sizeof full.default_value, "%s", row.default_text.c_str());
  std::snprintf(full.accepts, sizeof full.accepts, "%s", row.accepts.c_str());
  std::snprintf(full.sentence, sizeof full.sentence, "%s", row.sentence);
  std::snprintf(full.nccl_name, sizeof full.nccl_name, "%s", row.nccl_name.c_str());
  std::snprintf(full.source, sizeof full.source, "%s", row.source.c_str());
  if (auto written = write_struct(info, full, "noria_param_info"); !written)
    return refuse(written.failure());
  return NORIA_OK;
}

noria_status noria_observe_counter(uint32_t index, noria_counter_info* info) {
  if (index >= noria::kCounterRows.size())
    return refuse({NORIA_E_ARG, "noria_observe_counter: index " + std::to_string(index) +
                                    " is past the last of " +
                                    std::to_string(noria::kCounterRows.size()) + " counters"});
  const noria::CounterRow& row = noria::kCounterRows[index];
  noria_counter_info full{};
  full.value = noria::counter_totals()[index];
  std::snprintf(full.name, sizeof full.name, "%s", row.name);
  std::snprintf(full.unit, sizeof full.unit, "%s", row.unit);
  std::snprintf(full.sentence, sizeof full.sentence, "%s", row.sentence);
  if (auto written = write_struct(info, full, "noria_counter_info"); !written)
    return refuse(written.failure());
  return NORIA_OK;
}

noria_status noria_observe_comm(const noria_comm* comm, noria_comm_info* info) {
  if (!is_usable(comm)) return refuse(unusable(comm, "noria_observe_comm: comm"));
  if (auto written = write_struct(info, comm->comm->info(), "noria_comm_info"); !written)
    return refuse(written.failure());
  return NORIA_OK;
}
