#include "tests/support/crew.hpp"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

namespace noria::test {
namespace {

constexpr int kWireTimeoutSeconds = 30;

void make_socket_pair(int fds[2]) {
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
  const timeval limit{.tv_sec = kWireTimeoutSeconds, .tv_usec = 0};
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(setsockopt(fds[i], SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit), 0);
    ASSERT_EQ(setsockopt(fds[i], SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit), 0);
  }
}

[[noreturn]] void run_child(const Body& body, Post post, pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(1);  // the parent died before prctl()
  body(post);
  std::fflush(nullptr);
  std::exit(::testing::Test::HasFailure() ? 1 : 0);
}

}  // namespace

void Wire::send_bytes(const void* data, size_t bytes) {
  if (failed_) return;
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::send(fd_, from, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      failed_ = true;
      ADD_FAILURE() << "wire: cannot send: errno " << errno;
      return;
    }
    from += n;
    bytes -= static_cast<size_t>(n);
  }
}

void Wire::recv_bytes(void* data, size_t bytes) {
  if (failed_) return;
  auto* to = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t n = ::recv(fd_, to, bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      failed_ = true;
      ADD_FAILURE() << "wire: " << (n == 0 ? "the other end is gone" : "nothing came in time");
      return;
    }
    to += n;
    bytes -= static_cast<size_t>(n);
  }
}

Crew::Crew(const std::vector<Body>& bodies) {
  std::fflush(nullptr);  // or each child prints what is buffered here
  int peers[2] = {-1, -1};
  if (bodies.size() == 2) make_socket_pair(peers);
  const pid_t parent = getpid();
  for (size_t i = 0; i < bodies.size(); ++i) {
    int fds[2] = {-1, -1};
    make_socket_pair(fds);
    const pid_t pid = fork();
    if (pid == 0) {
      // The ends of others would hide their death from the one who waits for them.
      close(fds[0]);
      for (const Child& child : children_) close(child.wire.fd());
      if (bodies.size() == 2) close(peers[1 - i]);
      run_child(bodies[i], {static_cast<int>(i), Wire(peers[i & 1]), Wire(fds[1])}, parent);
    }
    EXPECT_GT(pid, 0) << "fork failed";
    close(fds[1]);
    children_.push_back({pid, Wire(fds[0])});
  }
  for (const int fd : peers)
    if (fd >= 0) close(fd);
}

Crew::~Crew() {
  for (Child& child : children_) {
    if (child.pid > 0) {
      ::kill(child.pid, SIGKILL);
      waitpid(child.pid, nullptr, 0);
    }
    close(child.wire.fd());
  }
}

void Crew::kill(size_t side, int signal) {
  ASSERT_GT(children_[side].pid, 0);
  EXPECT_EQ(::kill(children_[side].pid, signal), 0);
  if (signal != SIGSTOP) return;
  // Its threads stop one by one. What ended meanwhile is left for wait().
  siginfo_t stopped{};
  EXPECT_EQ(::waitid(P_PID, static_cast<id_t>(children_[side].pid), &stopped,
                     WSTOPPED | WEXITED | WNOWAIT),
            0);
}

Ending Crew::wait(size_t side, std::chrono::seconds limit) {
  Child& child = children_[side];
  if (child.pid <= 0) return {};
  const auto deadline = std::chrono::steady_clock::now() + limit;
  int status = 0;
  while (waitpid(child.pid, &status, WNOHANG) == 0) {
    if (std::chrono::steady_clock::now() > deadline) return {.timed_out = true};
    const timespec pause{.tv_sec = 0, .tv_nsec = 500'000};
    nanosleep(&pause, nullptr);
  }
  child.pid = -1;
  Ending ending;
  if (WIFEXITED(status)) ending.exit_code = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) ending.signal = WTERMSIG(status);
  return ending;
}

void run_pair(const Body& first, const Body& second) {
  Crew crew({first, second});
  for (size_t side = 0; side < 2; ++side) {
    const Ending ending = crew.wait(side);
    EXPECT_EQ(ending.exit_code, 0) << "side " << side << (ending.timed_out ? " timed out" : "")
                                   << ", signal " << ending.signal;
  }
}

}  // namespace noria::test
