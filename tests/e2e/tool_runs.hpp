// The tools as a user starts them: command in, exit code and both outputs out.
//
// Threads: one at a time.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace noria::perf {

using Environment = std::vector<std::pair<std::string, std::string>>;

struct ToolEnd {
  int exit_code = -1;  // -1: by a signal
  int signal = 0;
  std::string out, err;
};

// A tool that runs. Every wait has a bound; what is still there at the end is killed.
class RunningTool {
 public:
  // `command` begins with the tool's name, or another program's path.
  explicit RunningTool(std::vector<std::string> command, const Environment& environment = {});
  ~RunningTool();
  RunningTool(const RunningTool&) = delete;
  RunningTool& operator=(const RunningTool&) = delete;

  pid_t pid() const { return pid_; }
  // Reads standard output until it holds `text`; false after 30 s or at its end.
  bool prints(const std::string& text);
  // The ranks that it forked, in order of rank.
  std::vector<pid_t> children() const;
  // The same once there are so many, or after 30 s.
  std::vector<pid_t> children(size_t count) const;
  // Waits for the end, 120 s at most.
  ToolEnd end();

 private:
  // Reads what there is on both; false when both have ended, or at the deadline.
  bool read_more(int64_t deadline_ns);

  pid_t pid_ = -1;
  int out_ = -1, err_ = -1;
  ToolEnd end_;
};

ToolEnd run_tool_to_end(const std::vector<std::string>& command,
                        const Environment& environment = {});

// A descriptor that becomes readable when the process ends.
int watch_process(pid_t pid);
// True when it ended within 10 s.
bool ends(int process_watch);

// A TCP port of the loopback that was free a moment ago: another program may take it.
uint16_t free_port();

std::vector<std::string> lines_of(const std::string& text);

// Expects that each of `ranks` but the killed one wrote a line that names it, and that the tool
// ended by itself with 4.
void expect_named_by_all_others(const ToolEnd& end, const std::string& tool, size_t ranks,
                                size_t killed);

}  // namespace noria::perf
