#include "tests/e2e/tool_runs.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <fstream>
#include <sstream>

#include "base/clock.hpp"

namespace noria::perf {

RunningTool::RunningTool(std::vector<std::string> command, const Environment& environment) {
  if (command[0].front() != '/') command[0] = NORIA_BIN_DIR + command[0];
  std::array<int, 2> out{}, err{};
  if (::pipe2(out.data(), O_CLOEXEC) != 0 || ::pipe2(err.data(), O_CLOEXEC) != 0) std::abort();
  pid_ = ::fork();
  if (pid_ == 0) {
    for (const auto& [name, value] : environment) ::setenv(name.c_str(), value.c_str(), 1);
    ::dup2(out[1], STDOUT_FILENO);
    ::dup2(err[1], STDERR_FILENO);
    std::vector<char*> words;
    for (std::string& word : command) words.push_back(word.data());
    words.push_back(nullptr);
    ::execv(words[0], words.data());
    ::_exit(127);
  }
  ::close(out[1]);
  ::close(err[1]);
  out_ = out[0];
  err_ = err[0];
}

RunningTool::~RunningTool() {
  if (pid_ > 0) {
    for (const pid_t child : children()) ::kill(child, SIGKILL);
    ::kill(pid_, SIGKILL);
    ::waitpid(pid_, nullptr, 0);
  }
  if (out_ >= 0) ::close(out_);
  if (err_ >= 0) ::close(err_);
}

bool RunningTool::read_more(int64_t deadline_ns) {
  std::array<pollfd, 2> fds{pollfd{out_, POLLIN, 0}, pollfd{err_, POLLIN, 0}};
  const int64_t left = deadline_ns - now_ns();
  if ((out_ < 0 && err_ < 0) || left <= 0) return false;
  if (::poll(fds.data(), fds.size(), static_cast<int>(left / 1_ms) + 1) <= 0) return false;
  std::array<char, 4096> part;
  const auto take = [&](const pollfd& ready, int& fd, std::string& text) {
    if (ready.revents == 0) return;
    const ssize_t n = ::read(fd, part.data(), part.size());
    if (n > 0) {
      text.append(part.data(), static_cast<size_t>(n));
    } else {
      ::close(fd);
      fd = -1;
    }
  };
  take(fds[0], out_, end_.out);
  take(fds[1], err_, end_.err);
  return true;
}

bool RunningTool::prints(const std::string& text) {
  const int64_t deadline = now_ns() + 30_s;
  while (end_.out.find(text) == std::string::npos)
    if (!read_more(deadline)) return false;
  return true;
}

std::vector<pid_t> RunningTool::children() const {
  const std::string task = std::to_string(pid_);
  std::ifstream file("/proc/" + task + "/task/" + task + "/children");
  std::vector<pid_t> pids;
  for (pid_t pid = 0; file >> pid;) pids.push_back(pid);
  return pids;
}

std::vector<pid_t> RunningTool::children(size_t count) const {
  std::vector<pid_t> found = children();
  for (int looks = 0; found.size() < count && looks < 30000; ++looks) {
    ::poll(nullptr, 0, 1);
    found = children();
  }
  return found;
}

ToolEnd RunningTool::end() {
  const int64_t deadline = now_ns() + 120_s;
  while (read_more(deadline)) {
  }
  if (now_ns() >= deadline) ::kill(pid_, SIGKILL);
  int status = 0;
  ::waitpid(pid_, &status, 0);
  pid_ = -1;
  if (WIFEXITED(status)) end_.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) end_.signal = WTERMSIG(status);
  return end_;
}

ToolEnd run_tool_to_end(const std::vector<std::string>& command, const Environment& environment) {
  return RunningTool(command, environment).end();
}

int watch_process(pid_t pid) { return static_cast<int>(::syscall(SYS_pidfd_open, pid, 0)); }

bool ends(int process_watch) {
  pollfd fd{process_watch, POLLIN, 0};
  const bool ended = ::poll(&fd, 1, 10000) == 1;
  ::close(process_watch);
  return ended;
}

uint16_t free_port() {
  const int fd = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t bytes = sizeof address;
  EXPECT_EQ(::bind(fd, reinterpret_cast<sockaddr*>(&address), bytes), 0);
  EXPECT_EQ(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &bytes), 0);
  ::close(fd);
  return ntohs(address.sin_port);
}

void expect_named_by_all_others(const ToolEnd& end, const std::string& tool, size_t ranks,
                                size_t killed) {
  EXPECT_EQ(end.exit_code, 4) << end.err;
  const std::string name = "rank " + std::to_string(killed);
  for (size_t survivor = 0; survivor < ranks; ++survivor) {
    if (survivor == killed) continue;
    bool is_named = false;
    const std::string begin = tool + ": rank " + std::to_string(survivor) + ": ";
    for (const std::string& line : lines_of(end.err))
      is_named = is_named ||
                 (line.starts_with(begin) && line.find(name, begin.size()) != std::string::npos);
    EXPECT_TRUE(is_named) << "rank " << survivor << " does not name " << name << ":\n" << end.err;
  }
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

}  // namespace noria::perf
