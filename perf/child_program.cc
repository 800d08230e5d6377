#include "perf/child_program.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "perf/exit_codes.hpp"

namespace noria::perf {
namespace {

constexpr Nanoseconds kAfterTerm = 5_s;

[[noreturn]] void become(const std::vector<std::string>& command,
                         const std::vector<std::pair<std::string, std::string>>& environment,
                         int output) {
  ::prctl(PR_SET_PDEATHSIG, SIGTERM);
  for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
  ::dup2(output, STDOUT_FILENO);
  std::vector<char*> arguments;
  for (const std::string& word : command) arguments.push_back(const_cast<char*>(word.c_str()));
  arguments.push_back(nullptr);
  ::execvp(arguments[0], arguments.data());
  ::_exit(127);
}

// Reads until the end of file or the deadline; false at the deadline.
bool read_all(int fd, Nanoseconds deadline, std::string& output) {
  std::array<char, 4096> part;
  while (true) {
    const Nanoseconds left = deadline - now_ns();
    pollfd ready{.fd = fd, .events = POLLIN, .revents = 0};
    if (left <= 0 || ::poll(&ready, 1, static_cast<int>(left / 1_ms) + 1) == 0) return false;
    const ssize_t n = ::read(fd, part.data(), part.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return true;
    output.append(part.data(), static_cast<size_t>(n));
  }
}

struct Child {
  pid_t pid;
  int output;  // the end that we read
};

Child start(const std::vector<std::string>& command,
            const std::vector<std::pair<std::string, std::string>>& environment) {
  std::array<int, 2> pipe{};
  if (::pipe2(pipe.data(), O_CLOEXEC) != 0)
    throw ToolError(Exit::environment, std::string("pipe: ") + strerror(errno));
  const pid_t pid = ::fork();
  if (pid < 0) throw ToolError(Exit::environment, std::string("fork: ") + strerror(errno));
  if (pid == 0) become(command, environment, pipe[1]);
  ::close(pipe[1]);
  return {pid, pipe[0]};
}

ProgramEnd finish(const Child& child, Nanoseconds limit) {
  ProgramEnd end;
  const bool in_time = read_all(child.output, now_ns() + limit, end.output);
  if (!in_time) {
    ::kill(child.pid, SIGTERM);
    if (!read_all(child.output, now_ns() + kAfterTerm, end.output)) ::kill(child.pid, SIGKILL);
  }
  ::close(child.output);
  int status = 0;
  while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
  }
  if (in_time && WIFEXITED(status)) end.exit_code = WEXITSTATUS(status);
  return end;
}

}  // namespace

ProgramEnd run_program(const std::vector<std::string>& command,
                       const std::vector<std::pair<std::string, std::string>>& environment,
                       Nanoseconds limit) {
  return finish(start(command, environment), limit);
}

ProgramBeside::ProgramBeside(const std::vector<std::string>& command) {
  const Child child = start(command, {});
  pid_ = child.pid;
  output_ = child.output;
}

ProgramBeside::~ProgramBeside() {
  if (pid_ > 0) end(0);
}

bool ProgramBeside::has_ended() const {
  siginfo_t info{};
  return ::waitid(P_PID, static_cast<id_t>(pid_), &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
         info.si_pid == pid_;
}

ProgramEnd ProgramBeside::end(Nanoseconds limit) {
  return finish({std::exchange(pid_, -1), output_}, limit);
}

namespace {

// A program below the current folder, as one would type it there.
std::string typed(const std::string& word) {
  std::error_code none;
  const std::string here = std::filesystem::current_path(none).string() + "/";
  return word.starts_with(here) ? word.substr(here.size()) : word;
}

}  // namespace

std::string command_text(const std::vector<std::string>& command,
                         const std::vector<std::pair<std::string, std::string>>& environment) {
  std::string text;
  for (const auto& [name, value] : environment) text += name + "=" + value + " ";
  for (const std::string& word : command) text += typed(word) + " ";
  if (!text.empty()) text.pop_back();
  return text;
}

std::string output_of_program(const std::vector<std::string>& command,
                              const std::vector<std::pair<std::string, std::string>>& environment,
                              Nanoseconds limit) {
  ProgramEnd end = run_program(command, environment, limit);
  if (end.exit_code != 0)
    throw ToolError(Exit::environment, "exit code " + std::to_string(end.exit_code) + " of " +
                                           command_text(command, environment) + ": " + end.output);
  return std::move(end.output);
}

}  // namespace noria::perf
