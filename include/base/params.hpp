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
#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "base/result.hpp"
#include "base/units.hpp"

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

inline std::string number_text(double value) {
  char text[64];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

inline std::string bytes_text(uint64_t value, const char* unit) {
  if (std::strcmp(unit, "bytes") != 0 || value == 0) return std::to_string(value);
  constexpr std::array<std::pair<uint64_t, const char*>, 3> kSuffixes{
      {{1_GiB, "G"}, {1_MiB, "M"}, {1_KiB, "K"}}};
  for (const auto& [size, suffix] : kSuffixes)
    if (value % size == 0) return std::to_string(value / size) + suffix;
  return std::to_string(value);
}

// Digits with an optional K, M or G. Refuses signs, blanks, trailing text and overflow.
inline bool parse_uint(std::string_view text, uint64_t* out) {
  unsigned shift = 0;
  if (!text.empty()) {
    switch (std::toupper(static_cast<unsigned char>(text.back()))) {
      case 'K': shift = 10; break;
      case 'M': shift = 20; break;
      case 'G': shift = 30; break;
      default: break;
    }
    if (shift != 0) text.remove_suffix(1);
  }
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return false;
  if ((value << shift) >> shift != value) return false;
  *out = value << shift;
  return true;
}

inline bool parse_real(std::string_view text, double* out) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return false;
  if (!(value == value)) return false;  // NaN is inside no range
  *out = value;
  return true;
}

inline bool parse_bool(std::string_view text, bool* out) {
  std::string lower(text);
  for (char& c : lower) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  if (lower == "1" || lower == "true" || lower == "on") return *out = true, true;
  if (lower == "0" || lower == "false" || lower == "off") return *out = false, true;
  return false;
}

inline bool is_choice(std::string_view text, std::string_view choices) {
  while (true) {
    const size_t bar = choices.find('|');
    if (choices.substr(0, bar) == text) return true;
    if (bar == std::string_view::npos) return false;
    choices.remove_prefix(bar + 1);
  }
}

}  // namespace detail

// The number of single-character edits that turn one string into the other.
inline size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t substitute = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({substitute, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

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

// Reads the environment given as NAME=value strings, null-terminated, as in environ(7).
// Pass the process's own `environ`, or a list of a test's.
inline Result<Params, std::string> load_params(const char* const* environment) {
  Params params;
  const auto refuse = [](std::string_view name, std::string_view value, std::string_view accepts) {
    return std::string(name) + ": '" + std::string(value) + "' is not accepted; it takes " +
           std::string(accepts);
  };
  for (const char* const* entry = environment; entry != nullptr && *entry != nullptr; ++entry) {
    const std::string_view pair(*entry);
    const size_t equals = pair.find('=');
    if (equals == std::string_view::npos) continue;
    const std::string_view name = pair.substr(0, equals);
    const std::string_view value = pair.substr(equals + 1);

    if (name == "NCCL_SOCKET_IFNAME") params.nccl_socket_ifname = value;
    if (name == "NCCL_SOCKET_FAMILY") params.nccl_socket_family = value;
    if (name == "RANK") params.rank = value;
    if (name == "WORLD_SIZE") params.world_size = value;
    if (name == "LOCAL_RANK") params.local_rank = value;
    if (name == "MASTER_ADDR") params.master_addr = value;
    if (name == "MASTER_PORT") params.master_port = value;
    if (!name.starts_with("NORIA_")) continue;

    bool known = false;
#define NORIA_PARAM_TEXT(field, def, env, form, sentence) \
  if (name == env) known = true, params.field = value;
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
    if (!known) {
      const char* nearest = "";
      size_t least = SIZE_MAX;
      for (const ParamRow& row : param_rows(Params{})) {
        const size_t distance = edit_distance(name, row.name);
        if (distance < least) least = distance, nearest = row.name;
      }
      return std::string(name) + " is not a variable of noria; the nearest is " + nearest;
    }
  }
  constexpr std::array<std::string_view, 4> kLevels{"none", "error", "warn", "info"};
  for (size_t i = 0; i < kLevels.size(); ++i)
    if (params.debug == kLevels[i]) set_log_level(static_cast<LogLevel>(i));
  return params;
}

}  // namespace noria
