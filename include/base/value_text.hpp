// Values as people write them: numbers with units, words, and the distance between two names.
//
// Parsing is strict: the whole string or nothing. What is written is read as the same value. Pure
// functions of their arguments.
//
// Threads: any thread.
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/units.hpp"

namespace noria {

// "host:port", "[::1]:port". False leaves the outputs as they were.
inline bool parse_host_port(std::string_view text, std::string* host, uint16_t* port) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  std::string_view name = text.substr(0, colon);
  if (name.front() == '[') {
    if (name.back() != ']' || name.size() < 3) return false;
    name = name.substr(1, name.size() - 2);
  } else if (name.find(':') != std::string_view::npos) {
    return false;  // an IPv6 address without brackets: which colon is the port's?
  }
  if (name.find_first_of("[]") != std::string_view::npos) return false;
  uint16_t number = 0;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data() + colon + 1, end, number);
  if (error != std::errc() || stop != end || number == 0) return false;
  *host = name;
  *port = number;
  return true;
}

namespace detail {

// As few digits as tell the number from every other.
inline std::string number_text(double value) {
  char text[64];
  for (int digits = 6; digits <= 17; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    double again = 0;
    std::from_chars(text, text + std::strlen(text), again);
    if (again == value) break;
  }
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

// Hexadecimal digits, without a prefix.
inline bool parse_hex(std::string_view text, uint64_t* out) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, 16);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return false;
  *out = value;
  return true;
}

// A whole number as NCCL reads it, by strtoll() with base 0: a sign, then hexadecimal behind 0x,
// octal behind 0, else decimal. Refuses trailing text and overflow.
inline bool parse_nccl_int(std::string_view text, int64_t* out) {
  const bool is_negative = text.starts_with('-');
  if (is_negative || text.starts_with('+')) text.remove_prefix(1);
  int base = 10;
  if (text.starts_with("0x") || text.starts_with("0X")) {
    base = 16;
    text.remove_prefix(2);
  } else if (text.size() > 1 && text.front() == '0') {
    base = 8;
  }
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) return false;
  if (value > INT64_MAX) return false;
  *out = is_negative ? -static_cast<int64_t>(value) : static_cast<int64_t>(value);
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

// Without the blanks around it.
inline std::string_view trimmed(std::string_view text) {
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  return text;
}

// Cuts `text` at the first `mark`; what is after it remains.
inline std::string_view take_until(std::string_view* text, char mark) {
  const size_t at = text->find(mark);
  const std::string_view head = text->substr(0, at);
  text->remove_prefix(at == std::string_view::npos ? text->size() : at + 1);
  return trimmed(head);
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

// Words of a stranger's for a failure's text: what would end the line, or move a terminal's cursor,
// becomes a question mark.
inline std::string printable(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || c == '\x7f') c = '?';
  return text;
}

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

// The one of `words` that takes the fewest edits to reach; there is one at least.
inline std::string nearest_word(std::string_view word, std::span<const std::string_view> words) {
  return std::string(
      *std::min_element(words.begin(), words.end(), [word](std::string_view a, std::string_view b) {
        return edit_distance(word, a) < edit_distance(word, b);
      }));
}

}  // namespace noria
