// Input: the bytes that a fuzz target is given, taken from the front.
//
// A target is one function, LLVMFuzzerTestOneInput, that takes an Input apart, gives the pieces to
// a parser and checks with NORIA_CHECK what must hold of the answer whatever the bytes were. What
// is absent reads as zero or as empty text.
//
// Threads: one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/check.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size);

namespace noria::fuzz {

class Input {
 public:
  Input(const uint8_t* data, size_t size) : rest_(reinterpret_cast<const char*>(data), size) {}

  bool is_empty() const { return rest_.empty(); }
  std::string_view rest() const { return rest_; }

  template <class T>
  T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value{};
    const size_t bytes = std::min(rest_.size(), sizeof value);
    std::memcpy(static_cast<void*>(&value), rest_.data(), bytes);
    rest_.remove_prefix(bytes);
    return value;
  }
  std::string take_text(size_t bytes) {
    std::string text(rest_.substr(0, bytes));
    rest_.remove_prefix(text.size());
    return text;
  }
  // The rest, cut at each `separator`.
  std::vector<std::string> take_parts(char separator) {
    std::vector<std::string> parts;
    while (!rest_.empty()) {
      const size_t end = std::min(rest_.find(separator), rest_.size());
      parts.emplace_back(rest_.substr(0, end));
      rest_.remove_prefix(std::min(end + 1, rest_.size()));
    }
    return parts;
  }

 private:
  std::string_view rest_;
};

// What a failure's text must be: a line, whatever was wrong with the input.
inline bool is_one_line(std::string_view text) {
  return !text.empty() && std::none_of(text.begin(), text.end(), [](char c) {
    return static_cast<unsigned char>(c) < ' ' || c == '\x7f';
  });
}

template <class T>
std::string_view bytes_of(const T& value) {
  static_assert(std::is_trivially_copyable_v<T>);
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

}  // namespace noria::fuzz
