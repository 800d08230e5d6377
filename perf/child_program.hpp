// Runs other programs and takes what they write to standard output.
//
// A program dies with this process. It has `limit` to end, then it is asked (TERM), so that a
// launcher can end what it started, and a little later killed.
//
// Threads: one at a time.
#pragma once

#include <sys/types.h>

#include <string>
#include <utility>
#include <vector>

#include "base/clock.hpp"

namespace noria::perf {

struct ProgramEnd {
  int exit_code = -1;  // -1: ended by a signal, or by the limit
  std::string output;
};

// `environment` is added to this process's own. Throws ToolError (environment) if nothing can be
// started; a program that is not found ends with 127, as in a shell.
ProgramEnd run_program(const std::vector<std::string>& command,
                       const std::vector<std::pair<std::string, std::string>>& environment,
                       Nanoseconds limit);

// The same of a program that must end well: its output. Throws ToolError (environment), with the
// command and what it wrote, for any other end.
std::string output_of_program(const std::vector<std::string>& command,
                              const std::vector<std::pair<std::string, std::string>>& environment,
                              Nanoseconds limit);

// A program that runs beside this one. It has nobody who reads what it writes before the end, so
// that it must not write more than a pipe holds. It ends with this object at the latest: asked
// (TERM), then killed.
class ProgramBeside {
 public:
  explicit ProgramBeside(const std::vector<std::string>& command);
  ~ProgramBeside();
  ProgramBeside(const ProgramBeside&) = delete;
  ProgramBeside& operator=(const ProgramBeside&) = delete;

  bool has_ended() const;
  // Gives it `limit` to end by itself, once.
  ProgramEnd end(Nanoseconds limit);

 private:
  pid_t pid_;
  int output_;
};

// As one would type it.
std::string command_text(const std::vector<std::string>& command,
                         const std::vector<std::pair<std::string, std::string>>& environment);

}  // namespace noria::perf
