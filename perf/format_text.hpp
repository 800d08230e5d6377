// A text made as printf makes it. At most 511 bytes; what is longer is cut.
//
// Threads: any thread.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>

namespace noria::perf {

[[gnu::format(printf, 1, 2)]] inline std::string format_text(const char* format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  return text;
}

}  // namespace noria::perf
