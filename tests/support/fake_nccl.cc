// A library that a logger belongs to, as NCCL's does, and that knows its version. What is logged
// goes to whoever set the sink.
#include <cstdarg>
#include <cstdio>

#define NORIA_SHOWN extern "C" [[gnu::visibility("default")]]

namespace {
void (*sink)(int level, const char* text) = nullptr;
}

NORIA_SHOWN int ncclGetVersion(int* version) {
  *version = 23007;
  return 0;
}

NORIA_SHOWN void fake_nccl_log_to(void (*to)(int level, const char* text)) { sink = to; }

NORIA_SHOWN void fake_nccl_log(int level, unsigned long, const char*, int, const char* format,
                               ...) {
  char text[2048];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  if (sink != nullptr) sink(level, text);
}
