// log_text: the line that a plugin hands to NCCL's logger, for the loggers of tools and tests.
//
// Cut at 2047 characters. Allocates.
//
// Threads: any thread.
#pragma once

#include <cstdarg>
#include <cstdio>
#include <string>

namespace noria::plugin::abi {

inline std::string log_text(const char* format, va_list args) {
  char text[2048];
  std::vsnprintf(text, sizeof text, format, args);
  return text;
}

}  // namespace noria::plugin::abi
