// A sentence of the stand-in's, printf's way.
//
// Threads: any thread.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>

namespace noria::standin {

[[gnu::format(printf, 1, 2)]] inline std::string say(const char* format, ...) {
  char text[1024];
  va_list arguments;
  va_start(arguments, format);
  vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  return text;
}

}  // namespace noria::standin
