// One log sink for the process.
//
// Levels: error (someone must act), warn (working, but degraded), info (once per object). Nothing
// is logged on the data path. Lower case, no `=` between a name and its value, so that a double
// click selects the value. Every line carries its object's identity. The default sink writes
// "noria: <text>" to standard error with one write(2) and shows warn and error; NORIA_DEBUG=info
// shows all. Whoever first names a failure logs it, once.
//
// Cost: one snprintf into a stack buffer of 1 KiB (longer lines are cut), then the sink.
//
// Threads: any thread.
#pragma once

#include <unistd.h>

#include <atomic>
#include <cstdarg>
#include <cstdio>

#include "base/check.hpp"

namespace noria {

enum class LogLevel : int { none = 0, error = 1, warn = 2, info = 3 };

using LogSink = void (*)(LogLevel level, const char* text);

namespace detail {

inline void write_to_stderr(LogLevel, const char* text) {
  char line[1200];
  const int n = std::snprintf(line, sizeof line, "noria: %s\n", text);
  const auto bytes =
      static_cast<size_t>(n) < sizeof line ? static_cast<size_t>(n) : sizeof line - 1;
  if (n > 0 && ::write(STDERR_FILENO, line, bytes) < 0) return;  // no one left to tell
}

inline constinit std::atomic<LogSink> log_sink{&write_to_stderr};
inline constinit std::atomic<int> log_threshold{static_cast<int>(LogLevel::warn)};

}  // namespace detail

inline void set_log_sink(LogSink sink) {
  detail::log_sink.store(sink, std::memory_order_release);  // pairs with acquire in log()
}
inline void set_log_level(LogLevel level) {
  // relaxed: a line more or less while the level changes harms nobody.
  detail::log_threshold.store(static_cast<int>(level), std::memory_order_relaxed);
}

[[gnu::format(printf, 2, 3)]] NORIA_COLD inline void log(LogLevel level, const char* format, ...) {
  if (static_cast<int>(level) > detail::log_threshold.load(std::memory_order_relaxed)) return;
  char text[1024];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  detail::log_sink.load(std::memory_order_acquire)(level, text);  // pairs with set_log_sink()
}

}  // namespace noria
