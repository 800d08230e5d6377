// Exit codes of the tools, and the failure that carries one.
//
//   0  all right          1  a wrong result        2  usage: a flag, a value, a file, a variable
//   3  this machine lacks something (device, permission, memory)
//   4  a rank was lost, or time ran out
//
// Threads: values; any thread.
#pragma once

#include <noria/noria.h>

#include <cstdio>
#include <stdexcept>
#include <string>

#include "base/value_text.hpp"

namespace noria::perf {

enum class Exit : int { ok = 0, wrong_result = 1, usage = 2, environment = 3, peer = 4 };

constexpr Exit exit_of(noria_status status) {
  switch (status) {
    case NORIA_OK: return Exit::ok;
    case NORIA_E_ARG: return Exit::usage;
    case NORIA_E_NET:
    case NORIA_E_DEVICE:
    case NORIA_E_NOMEM:
    case NORIA_E_UNSUPPORTED:
    case NORIA_E_INTERNAL: return Exit::environment;
    case NORIA_E_NONFINITE: return Exit::wrong_result;
    default: return Exit::peer;  // what ranks do to each other: order, mismatch, missing, time
  }
}

// Ends a tool with one line on standard error.
class ToolError : public std::runtime_error {
 public:
  ToolError(Exit code, const std::string& text) : std::runtime_error(text), code_(code) {}
  Exit code() const { return code_; }

  // The line, unless it was shown before. `who` is the tool, or its rank.
  void show(const std::string& who) const {
    if (!is_shown_) std::fprintf(stderr, "%s: %s\n", who.c_str(), what());
    is_shown_ = true;
  }

 private:
  Exit code_;
  mutable bool is_shown_ = false;
};

// Runs what works with queue pairs that its caller holds: a failure is shown, then thrown on. To
// give them back may take a minute where their port is dead, and nobody should wait for the reason.
template <class Body>
auto show_failure_first(const std::string& who, Body body) {
  try {
    return body();
  } catch (const ToolError& error) {
    error.show(who);
    throw;
  }
}

// One line, whatever characters the value has that it names.
inline ToolError usage_error(const std::string& text) {
  return ToolError(Exit::usage, printable(text));
}

}  // namespace noria::perf
