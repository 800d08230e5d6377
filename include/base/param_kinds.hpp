// How the value of a parameter is written: one struct for each kind of row in params.def.
//
// A kind reads a text strictly (the whole string or nothing), writes a value so that it is read as
// the same, and says what it takes. Pure.
//
// Threads: values.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/address_range.hpp"
#include "base/hca_filter.hpp"
#include "base/value_text.hpp"

namespace noria::detail {

inline constexpr std::string_view kHcaForm = "[^][=]name[:port],...";
inline constexpr std::string_view kRangeForm = "address/bits";

// A text of some form; an empty one is none at all.
struct TextKind {
  std::string_view form;

  bool read(std::string_view text, std::string* out) const {
    std::string host;
    uint16_t port = 0;
    const bool fits = text.empty()          ? true
                      : form == "host:port" ? parse_host_port(text, &host, &port)
                      : form == kHcaForm    ? HcaFilter::parse(text).is_ok()
                      : form == kRangeForm  ? parse_address_range(text).has_value()
                                            : true;
    if (fits) *out = text;
    return fits;
  }
  std::string written(const std::string& value) const { return value; }
  std::string accepts() const { return std::string(form); }
};

// One of "a|b|c"; where on and off are among them, as BoolKind spells them too.
struct ChoiceKind {
  std::string_view choices;

  bool read(std::string_view text, std::string* out) const {
    bool is_on = false;
    const bool is_switch =
        is_choice("on", choices) && is_choice("off", choices) && parse_bool(text, &is_on);
    const std::string_view word = !is_switch ? text : is_on ? "on" : "off";
    if (!is_choice(word, choices)) return false;
    *out = word;
    return true;
  }
  std::string written(const std::string& value) const { return value; }
  std::string accepts() const { return std::string(choices); }
};

struct BoolKind {
  bool read(std::string_view text, bool* out) const { return parse_bool(text, out); }
  std::string written(bool value) const { return value ? "1" : "0"; }
  std::string accepts() const { return "0|1"; }
  std::string spelled_out() const { return "0, 1, true, false, on or off"; }
};

inline std::string with_unit(const std::string& range, const char* unit) {
  return *unit == '\0' ? range : range + " " + unit;
}

struct UintKind {
  uint64_t least, most;
  const char* unit;

  bool read(std::string_view text, uint64_t* out) const {
    uint64_t number = 0;
    if (!parse_uint(text, &number) || number < least || number > most) return false;
    *out = number;
    return true;
  }
  std::string written(uint64_t value) const { return bytes_text(value, unit); }
  std::string accepts() const {
    return with_unit(bytes_text(least, unit) + " to " + bytes_text(most, unit), unit);
  }
};

// A number, in hexadecimal too, or "auto" (NCCL's -1) for what noria finds best.
struct AutoKind {
  uint64_t least, most;

  bool read(std::string_view text, std::optional<uint64_t>* out) const {
    uint64_t number = 0;
    const bool is_auto = text == "auto" || text == "-1";
    const bool is_number =
        text.starts_with("0x") ? parse_hex(text.substr(2), &number) : parse_uint(text, &number);
    if (!is_auto && (!is_number || number < least || number > most)) return false;
    *out = is_auto ? std::nullopt : std::optional(number);
    return true;
  }
  std::string written(const std::optional<uint64_t>& value) const {
    return value ? std::to_string(*value) : "auto";
  }
  std::string accepts() const {
    return "auto or " + std::to_string(least) + " to " + std::to_string(most);
  }
};

struct RealKind {
  double least, most;
  const char* unit;

  bool read(std::string_view text, double* out) const {
    double number = 0;
    if (!parse_real(text, &number) || number < least || number > most) return false;
    *out = number;
    return true;
  }
  std::string written(double value) const { return number_text(value); }
  std::string accepts() const {
    return with_unit(number_text(least) + " to " + number_text(most), unit);
  }
};

}  // namespace noria::detail
