// Params: every environment variable of noria, read once, checked, then immutable.
//
// The rows live in params.def. load_params() is the only reader of the environment in this project
// (a test says so); everything else takes `const Params&`. Parsing is strict: whole string, range,
// unit. A bad value or an unknown NORIA_ name is a failure whose text names the variable, the
// value, what is accepted, and for an unknown name the nearest real one.
//
// Threads: load_params() init only; a loaded Params is read from any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "base/soft_devices.hpp"
#include "base/soft_faults.hpp"
#include "base/value_text.hpp"

namespace noria {

struct Params {
#define NORIA_PARAM_TEXT(field, def, name, form, sentence) std::string field = def;
#define NORIA_PARAM_CHOICE(field, def, name, choices, sentence) std::string field = def;
#define NORIA_PARAM_BOOL(field, def, name, sentence) bool field = def;
#define NORIA_PARAM_UINT(field, def, min, max, unit, name, sentence) uint64_t field = def;
#define NORIA_PARAM_REAL(field, def, min, max, unit, name, sentence) double field = def;
#include "base/params.def"
#undef NORIA_PARAM_TEXT
#undef NORIA_PARAM_CHOICE
#undef NORIA_PARAM_BOOL
#undef NORIA_PARAM_UINT
#undef NORIA_PARAM_REAL

  // Variables of other programs that noria honours, where its own is unset.
  std::string nccl_socket_ifname;
  std::string nccl_socket_family;
  std::string ld_preload, xdg_runtime_dir;
  // What a launcher says of this process; empty where absent.
  std::string rank, world_size, local_rank, master_addr, master_port;
};

// A row as documentation.
struct ParamRow {
  const char* name;
  std::string default_text;
  std::string accepts;  // "0 to 100 Gbit/s", "auto|read|message", "path"
  const char* sentence;
  std::string value;  // of the Params it was made from
  bool is_default = true;
};

namespace detail {

// Variables that belong to others and are honoured as they stand.
inline void take_foreign(std::string_view name, std::string_view value, Params* params) {
  if (name == "NCCL_SOCKET_IFNAME") params->nccl_socket_ifname = value;
  if (name == "NCCL_SOCKET_FAMILY") params->nccl_socket_family = value;
  if (name == "LD_PRELOAD") params->ld_preload = value;
  if (name == "XDG_RUNTIME_DIR") params->xdg_runtime_dir = value;
  if (name == "RANK") params->rank = value;
  if (name == "WORLD_SIZE") params->world_size = value;
  if (name == "LOCAL_RANK") params->local_rank = value;
  if (name == "MASTER_ADDR") params->master_addr = value;
  if (name == "MASTER_PORT") params->master_port = value;
}

// Empty, or what is wrong with the descriptions of the software HCA.
inline std::string check_soft(const Params& params) {
  const auto devices = parse_soft_devices(params.soft_devices);
  if (!devices.is_ok()) return "NORIA_SOFT_DEVICES: " + devices.failure();
  const auto faults = parse_soft_faults(params.soft_faults);
  const std::string wrong =
      faults.is_ok() ? unknown_fault_port(*faults, *devices) : faults.failure();
  return wrong.empty() ? "" : "NORIA_SOFT_FAULTS: " + wrong;
}

inline void apply_debug(const Params& params) {
  constexpr std::array<std::string_view, 4> kLevels{"none", "error", "warn", "info"};
  for (size_t i = 0; i < kLevels.size(); ++i)
    if (params.debug == kLevels[i]) set_log_level(static_cast<LogLevel>(i));
}

}  // namespace detail

// All rows with the values of `params`, in table order.
inline std::vector<ParamRow> param_rows(const Params& params) {
  std::vector<ParamRow> rows;
  [[maybe_unused]] const auto add = [&rows](const char* name, std::string def, std::string accepts,
                                            const char* sentence, std::string value) {
    const bool same = def == value;
    rows.push_back({name, std::move(def), std::move(accepts), sentence, std::move(value), same});
  };
#define NORIA_PARAM_TEXT(field, def, name, form, sentence) \
  add(name, def, form, sentence, params.field);
#define NORIA_PARAM_CHOICE(field, def, name, choices, sentence) \
  add(name, def, choices, sentence, params.field);
#define NORIA_PARAM_BOOL(field, def, name, sentence) \
  add(name, (def) ? "1" : "0", "0|1", sentence, params.field ? "1" : "0");
#define NORIA_PARAM_UINT(field, def, min, max, unit, name, sentence)                         \
  add(name, detail::bytes_text(def, unit),                                                   \
      detail::bytes_text(min, unit) + " to " + detail::bytes_text(max, unit) + " " + (unit), \
      sentence, detail::bytes_text(params.field, unit));
#define NORIA_PARAM_REAL(field, def, min, max, unit, name, sentence)                         \
  add(name, detail::number_text(def),                                                        \
      detail::number_text(min) + " to " + detail::number_text(max) + " " + (unit), sentence, \
      detail::number_text(params.field));
#include "base/params.def"
#undef NORIA_PARAM_TEXT
#undef NORIA_PARAM_CHOICE
#undef NORIA_PARAM_BOOL
#undef NORIA_PARAM_UINT
#undef NORIA_PARAM_REAL
  return rows;
}

// The name in the table that takes the fewest edits to reach.
inline std::string nearest_param(std::string_view name) {
  std::string nearest;
  size_t least = SIZE_MAX;
  for (const ParamRow& row : param_rows(Params{})) {
    const size_t distance = edit_distance(name, row.name);
    if (distance < least) least = distance, nearest = row.name;
  }
  return nearest;
}

// Reads the environment given as NAME=value strings, null-terminated, as in environ(7).
// Pass the process's own `environ`, or a list of a test's.
inline Result<Params, std::string> load_params(const char* const* environment) {
  Params params;
  const auto refuse = [](std::string_view name, std::string_view value, std::string_view accepts) {
    return std::string(name) + ": '" + printable(std::string(value)) +
           "' is not accepted; it takes " + std::string(accepts);
  };
  for (const char* const* entry = environment; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view pair(*entry);
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = pair.substr(0, equals);
    const std::string_view value = pair.substr(equals + 1);

    detail::take_foreign(name, value, &params);
    if (!name.starts_with("NORIA_")) continue;

    bool known = false;
#define NORIA_PARAM_TEXT(field, def, env, form, sentence)                 \
  if (name == env) {                                                      \
    known = true;                                                         \
    if (!detail::has_form(value, form)) return refuse(name, value, form); \
    params.field = value;                                                 \
  }
#define NORIA_PARAM_CHOICE(field, def, env, choices, sentence)                   \
  if (name == env) {                                                             \
    known = true;                                                                \
    if (!detail::is_choice(value, choices)) return refuse(name, value, choices); \
    params.field = value;                                                        \
  }
#define NORIA_PARAM_BOOL(field, def, env, sentence)               \
  if (name == env) {                                              \
    known = true;                                                 \
    if (!detail::parse_bool(value, &params.field))                \
      return refuse(name, value, "0, 1, true, false, on or off"); \
  }
#define NORIA_PARAM_UINT(field, def, min, max, unit, env, sentence)                               \
  if (name == env) {                                                                              \
    known = true;                                                                                 \
    uint64_t number = 0;                                                                          \
    if (!detail::parse_uint(value, &number) || number < (min) || number > (max))                  \
      return refuse(                                                                              \
          name, value,                                                                            \
          detail::bytes_text(min, unit) + " to " + detail::bytes_text(max, unit) + " " + (unit)); \
    params.field = number;                                                                        \
  }
#define NORIA_PARAM_REAL(field, def, min, max, unit, env, sentence)                               \
  if (name == env) {                                                                              \
    known = true;                                                                                 \
    double number = 0;                                                                            \
    if (!detail::parse_real(value, &number) || number < (min) || number > (max))                  \
      return refuse(name, value,                                                                  \
                    detail::number_text(min) + " to " + detail::number_text(max) + " " + (unit)); \
    params.field = number;                                                                        \
  }
#include "base/params.def"
#undef NORIA_PARAM_TEXT
#undef NORIA_PARAM_CHOICE
#undef NORIA_PARAM_BOOL
#undef NORIA_PARAM_UINT
#undef NORIA_PARAM_REAL
    if (!known)
      return printable(std::string(name)) + " is not a variable of noria; the nearest is " +
             nearest_param(name);
  }
  if (std::string wrong = detail::check_soft(params); !wrong.empty())
    return printable(std::move(wrong));
  detail::apply_debug(params);
  return params;
}

// For a process whose environment was refused and that still must tell its peers: of noria's own
// variables it reads only `names`, and defaults if even these are wrong.
inline Params load_params_named(const char* const* environment,
                                std::initializer_list<std::string_view> names) {
  std::vector<const char*> kept;
  for (const char* const* entry = environment; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view pair(*entry);
    const std::string_view name = pair.substr(0, pair.find('='));
    if (!name.starts_with("NORIA_") || std::find(names.begin(), names.end(), name) != names.end())
      kept.push_back(*entry);
  }
  kept.push_back(nullptr);
  auto params = load_params(kept.data());
  return params ? std::move(*params) : Params{};
}

}  // namespace noria
