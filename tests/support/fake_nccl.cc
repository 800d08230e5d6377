// A library that a logger belongs to, as NCCL's does, and that knows its version. What is logged
// goes to whoever set the sink.
#include <cstdarg>

#include "plugin/abi/log_text.hpp"
#include "plugin/abi/result.hpp"

#define NORIA_SHOWN extern "C" [[gnu::visibility("default")]]

namespace {
void (*sink)(int level, const char* text) = nullptr;
}

NORIA_SHOWN int ncclGetVersion(int* version) {
  *version = 23007;
  return 0;
}

NORIA_SHOWN void fake_nccl_log_to(void (*to)(int level, const char* text)) { sink = to; }

NORIA_SHOWN void fake_nccl_log(noria::plugin::abi::LogLevel level, unsigned long, const char*, int,
                               const char* format, ...) {
  va_list args;
  va_start(args, format);
  const std::string text = noria::plugin::abi::log_text(format, args);
  va_end(args);
  if (sink != nullptr) sink(static_cast<int>(level), text.c_str());
}
