// The bytes of a wire struct, for golden tests.
//
// Threads: values.
#pragma once

#include <cstdio>
#include <cstring>
#include <string>

namespace noria::test {

// In hex, with runs of zeros as "0*n".
template <class T>
std::string hex(const T& value) {
  unsigned char bytes[sizeof value];
  std::memcpy(bytes, &value, sizeof value);
  std::string text;
  for (size_t i = 0; i < sizeof value;) {
    size_t zeros = 0;
    while (i + zeros < sizeof value && bytes[i + zeros] == 0) ++zeros;
    if (!text.empty()) text += ' ';
    if (zeros > 1) {
      text += "0*" + std::to_string(zeros);
      i += zeros;
      continue;
    }
    char digits[3];
    std::snprintf(digits, sizeof digits, "%02x", bytes[i++]);
    text += digits;
  }
  return text;
}

}  // namespace noria::test
