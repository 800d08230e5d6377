// Params: every environment variable of noria, read once, checked, then immutable.
//
// The rows live in params.def. load_params() is the only reader of the environment in this project
// (a test says so); everything else takes `const Params&`. Parsing is strict: whole string, range,
// unit. A bad value or an unknown NORIA_ name is a failure whose text names the variable, the
// value, what is accepted, and for an unknown name the nearest real one.
//
// Where noria's own variable is unset, NCCL's for the same thing is taken, and is as bad when it is
// bad: a traffic class or a device that was meant and is not used costs more than a job that does
// not start. Whoever needs another value for NCCL itself sets noria's name, and NCCL's is not
// looked at. Empty, NCCL's counts as unset. NCCL_ names that are not in the table are not ours. Its
// numbers are read as NCCL reads them, in hexadecimal and octal too; in the place of one that NCCL
// takes and noria does not, the nearest is taken, and Params::notices says so.
//
// Threads: load_params() init only; a loaded Params is read from any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/foreign_variables.hpp"
#include "base/log.hpp"
#include "base/param_table.hpp"
#include "base/result.hpp"
#include "base/soft_devices.hpp"
#include "base/soft_faults.hpp"
#include "base/value_text.hpp"

namespace noria {

// A row as documentation.
struct ParamRow {
  const char* name;
  std::string nccl_name;  // empty: NCCL has none
  std::string default_text;
  std::string accepts;  // "0 to 100 Gbit/s", "auto|read|message", "path"
  const char* sentence;
  std::string value;   // of the Params it was made from
  std::string source;  // "default", or the variable that gave the value
  bool is_default = true;
};

// Whether NCCL's names count: not in a verbs library that NCCL itself may be running on.
enum class NcclNames : uint8_t { taken, ignored };

namespace detail {

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

struct Variable {
  std::string_view name, value;
};

inline std::vector<Variable> split_environment(const char* const* environment) {
  std::vector<Variable> all;
  for (const char* const* entry = environment; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view pair(*entry);
    const size_t equals = pair.find('=');
    if (equals != std::string_view::npos)
      all.push_back({pair.substr(0, equals), pair.substr(equals + 1)});
  }
  return all;
}

inline std::string refusal(const Variable& variable, std::string_view accepts) {
  return std::string(variable.name) + ": '" + printable(std::string(variable.value)) +
         "' is not accepted; it takes " + std::string(accepts);
}

// Empty, or why the variable is refused.
template <class Field, class Kind>
std::string take_own(const Variable& variable, const Kind& kind, Field* field) {
  if (kind.read(variable.value, field)) return "";
  if constexpr (requires { kind.spelled_out(); }) return refusal(variable, kind.spelled_out());
  return refusal(variable, kind.accepts());
}

// A number in decimal, whatever NCCL would read it from; other words as they stand, but that digits
// behind a 0 are octal or nothing.
inline std::string in_decimal(std::string_view word) {
  int64_t number = 0;
  if (parse_nccl_int(word, &number)) return std::to_string(number);
  uint64_t digits = 0;
  return word.starts_with('0') && parse_uint(word, &digits) ? "" : std::string(word);
}

template <class Field, class Kind>
std::string take_nccls(const Variable& variable, const ParamNames& names, const Kind& kind,
                       Field* field, std::vector<std::string>* notices) {
  constexpr bool kIsText = std::is_same_v<Kind, TextKind>;
  const std::string word = kIsText ? std::string(variable.value) : in_decimal(variable.value);
  const std::string_view ours = names.translated(word);
  if (kind.read(ours, field)) {
    if (names.has_range() && ours != word)
      notices->push_back(std::string(variable.name) + "=" + word + ": " + std::string(ours) +
                         " is taken, for noria takes " + kind.accepts());
    return "";
  }
  return refusal(variable, names.nccl_accepts(kind.accepts())) + " (" + names.noria +
         " is taken instead where it is set)";
}

}  // namespace detail

// All rows with the values of `params`, in table order.
inline std::vector<ParamRow> param_rows(const Params& params) {
  std::vector<ParamRow> rows;
  const auto show = [&](ParamId id, const detail::ParamNames& names, const auto& value,
                        const auto& kind) {
    const ParamSource source = params.sources[static_cast<size_t>(id)];
    rows.push_back({.name = names.noria,
                    .nccl_name = std::string(names.nccl),
                    .accepts = kind.accepts(),
                    .sentence = names.sentence,
                    .value = kind.written(value),
                    .source = source == ParamSource::noria  ? names.noria
                              : source == ParamSource::nccl ? std::string(names.nccl)
                                                            : "default"});
  };
  detail::for_each_param(params, show);
  const Params defaults;
  size_t i = 0;
  const auto compare = [&](ParamId, const auto&, const auto& value, const auto& kind) {
    ParamRow& row = rows[i++];
    row.default_text = kind.written(value);
    row.is_default = row.default_text == row.value;
  };
  detail::for_each_param(defaults, compare);
  return rows;
}

// The variable to name when the value of a row is at fault.
inline std::string variable_of(const Params& params, ParamId id) {
  std::string name;
  const auto find = [&](ParamId row, const detail::ParamNames& names, const auto&, const auto&) {
    if (row != id) return;
    const bool is_nccls = params.sources[static_cast<size_t>(id)] == ParamSource::nccl;
    name = is_nccls ? std::string(names.nccl) : names.noria;
  };
  detail::for_each_param(params, find);
  return name;
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
inline Result<Params, std::string> load_params(const char* const* environment,
                                               NcclNames nccl_names = NcclNames::taken) {
  Params params;
  const std::vector<detail::Variable> variables = detail::split_environment(environment);
  for (const detail::Variable& variable : variables) {
    detail::take_foreign(variable.name, variable.value, &params);
    if (!variable.name.starts_with("NORIA_")) continue;
    bool is_known = false;
    std::string wrong;
    const auto take = [&](ParamId id, const detail::ParamNames& names, auto& field,
                          const auto& kind) {
      if (variable.name != names.noria) return;
      is_known = true;
      wrong = detail::take_own(variable, kind, &field);
      params.sources[static_cast<size_t>(id)] = ParamSource::noria;
    };
    detail::for_each_param(params, take);
    if (!wrong.empty()) return wrong;
    if (!is_known)
      return printable(std::string(variable.name)) +
             " is not a variable of noria; the nearest is " + nearest_param(variable.name);
  }
  std::string wrong;
  const auto take = [&](ParamId id, const detail::ParamNames& names, auto& field,
                        const auto& kind) {
    ParamSource& source = params.sources[static_cast<size_t>(id)];
    for (const detail::Variable& variable : variables) {
      const bool is_it = !names.nccl.empty() && variable.name == names.nccl;
      if (!is_it || source == ParamSource::noria || variable.value.empty()) continue;
      if (wrong.empty()) wrong = detail::take_nccls(variable, names, kind, &field, &params.notices);
      source = ParamSource::nccl;
    }
  };
  if (nccl_names == NcclNames::taken) detail::for_each_param(params, take);
  if (wrong.empty()) wrong = printable(detail::check_soft(params));
  if (!wrong.empty()) return wrong;
  detail::apply_debug(params);
  return params;
}

// For a process whose environment was refused and that still must tell its peers: of the table's
// variables it reads only `names`, with NCCL's for the same, and defaults if even these are wrong.
inline Params load_params_named(const char* const* environment,
                                std::initializer_list<std::string_view> names) {
  const auto is_wanted = [&](std::string_view name) {
    for (const ParamRow& row : param_rows(Params{}))
      if (name == row.name || name == row.nccl_name)
        return std::find(names.begin(), names.end(), row.name) != names.end();
    return !name.starts_with("NORIA_");
  };
  std::vector<const char*> kept;
  for (const char* const* entry = environment; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view pair(*entry);
    if (is_wanted(pair.substr(0, pair.find('=')))) kept.push_back(*entry);
  }
  kept.push_back(nullptr);
  auto params = load_params(kept.data());
  return params ? std::move(*params) : Params{};
}

}  // namespace noria
