#include "perf/local_ranks.hpp"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <new>

#include "base/clock.hpp"
#include "perf/nccl_tests_json.hpp"

namespace noria::perf {
namespace {

// The job ends within 10 s of a rank's loss, also where another one is stopped and cannot name it.
constexpr Nanoseconds kGrace = 9_s;

[[noreturn]] void throw_errno(const char* what) {
  throw ToolError(Exit::environment, std::string(what) + ": " + strerror(errno));
}

class Fd {
 public:
  explicit Fd(int fd = -1) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Fd() { close(); }
  int get() const { return fd_; }
  void close() {
    if (fd_ >= 0) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_;
};

struct Pipe {
  Fd read, write;
  Pipe() {
    std::array<int, 2> ends{};
    if (::pipe2(ends.data(), O_CLOEXEC) != 0) throw_errno("pipe");
    read = Fd(ends[0]);
    write = Fd(ends[1]);
  }
};

// The first bad end of a rank, as waitpid(2) told it.
struct News {
  int32_t rank = 0;
  int32_t pid = 0;
  int32_t status = 0;
};

std::string describe(const News& news) {
  std::string text =
      "rank " + std::to_string(news.rank) + " (pid " + std::to_string(news.pid) + ")";
  if (!WIFSIGNALED(news.status))
    return text + " ended with exit code " + std::to_string(WEXITSTATUS(news.status));
  const int number = WTERMSIG(news.status);
  return text + " was killed by signal " + std::to_string(number) + " (" + strsignal(number) + ")";
}

struct Child {
  pid_t pid = -1;
  Fd report;
  bool ended = false;
};

sigset_t watched_signals() {
  sigset_t set;
  sigemptyset(&set);
  for (const int number : {SIGINT, SIGTERM, SIGHUP, SIGCHLD}) sigaddset(&set, number);
  return set;
}

// Blocks the watched signals while it lives, and hands them out by a descriptor.
class Signals {
 public:
  Signals() {
    const sigset_t set = watched_signals();
    if (sigprocmask(SIG_BLOCK, &set, &before_) != 0) throw_errno("sigprocmask");
    fd_ = Fd(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
    if (fd_.get() < 0) throw_errno("signalfd");
  }
  ~Signals() { sigprocmask(SIG_SETMASK, &before_, nullptr); }
  Signals(const Signals&) = delete;
  Signals& operator=(const Signals&) = delete;

  int fd() const { return fd_.get(); }
  const sigset_t& before() const { return before_; }
  // The signal that asks for an end, or 0. Empties the descriptor.
  int take_interrupt() {
    int interrupt = 0;
    signalfd_siginfo info;
    while (::read(fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info))
      if (info.ssi_signo != SIGCHLD) interrupt = static_cast<int>(info.ssi_signo);
    return interrupt;
  }

 private:
  sigset_t before_;
  Fd fd_;
};

// The parent's side: children, their ends and their reports.
class Collector {
 public:
  Collector(const LocalJob& job, Signals& signals, const Pipe& news)
      : job_(job), signals_(signals), news_(news) {
    result_.reports.resize(static_cast<size_t>(job.size));
  }
  ~Collector() { kill_all(); }
  Collector(const Collector&) = delete;
  Collector& operator=(const Collector&) = delete;

  void add(pid_t pid, Fd report) { children_.push_back({.pid = pid, .report = std::move(report)}); }

  LocalResult collect() {
    while (running() > 0 || reporting() > 0) {
      wait_for_news();
      if (const int interrupt = signals_.take_interrupt(); interrupt != 0) {
        kill_all();
        end_by(interrupt);
      }
      read_reports();
      reap();
      if (now_ns() >= deadline_) kill_late();
    }
    return std::move(result_);
  }

 private:
  size_t running() const {
    return static_cast<size_t>(
        std::count_if(children_.begin(), children_.end(), [](const Child& c) { return !c.ended; }));
  }
  size_t reporting() const {
    return static_cast<size_t>(std::count_if(children_.begin(), children_.end(),
                                             [](const Child& c) { return c.report.get() >= 0; }));
  }

  void wait_for_news() {
    std::vector<pollfd> fds{{.fd = signals_.fd(), .events = POLLIN, .revents = 0}};
    for (const Child& child : children_)
      if (child.report.get() >= 0)
        fds.push_back({.fd = child.report.get(), .events = POLLIN, .revents = 0});
    const Nanoseconds left =
        deadline_ == kNever ? kNever : std::max<Nanoseconds>(deadline_ - now_ns(), 0);
    const int timeout_ms = left == kNever ? -1 : static_cast<int>(left / 1_ms) + 1;
    if (::poll(fds.data(), fds.size(), timeout_ms) < 0 && errno != EINTR) throw_errno("poll");
  }

  void read_reports() {
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      Child& child = children_[rank];
      std::array<char, 65536> part;
      while (child.report.get() >= 0) {
        const ssize_t n = ::read(child.report.get(), part.data(), part.size());
        if (n > 0) {
          result_.reports[rank].append(part.data(), static_cast<size_t>(n));
        } else if (n == 0) {
          child.report.close();
        } else {
          break;  // nothing more for now
        }
      }
    }
  }

  void reap() {
    for (size_t rank = 0; rank < children_.size(); ++rank) {
      Child& child = children_[rank];
      int status = 0;
      if (child.ended || ::waitpid(child.pid, &status, WNOHANG) != child.pid) continue;
      child.ended = true;
      note_end(rank, status);
    }
  }

  void note_end(size_t rank, int status) {
    Exit exit = Exit::peer;
    const News news{static_cast<int32_t>(rank), children_[rank].pid, status};
    if (WIFSIGNALED(status)) {
      if (!late_) std::fprintf(stderr, "%s: %s\n", job_.tool, describe(news).c_str());
    } else {
      exit = static_cast<Exit>(WEXITSTATUS(status));
    }
    result_.exit = std::max(result_.exit, exit);
    // A rank with wrong results has done its part; after another failure the others end soon.
    if (exit == Exit::ok || exit == Exit::wrong_result || deadline_ != kNever) return;
    deadline_ = now_ns() + kGrace;
    tell_all(news);
  }

  // One copy for each rank. Who finds none in a pipe that was too small is killed after kGrace.
  void tell_all(const News& news) {
    const std::vector<News> copies(children_.size(), news);
    static_cast<void>(::write(news_.write.get(), copies.data(), copies.size() * sizeof news));
  }

  void kill_late() {
    for (size_t rank = 0; rank < children_.size(); ++rank)
      if (!children_[rank].ended)
        std::fprintf(stderr,
                     "%s: rank %zu (pid %d) did not end within %lld s of the failure: killed\n",
                     job_.tool, rank, static_cast<int>(children_[rank].pid),
                     static_cast<long long>(kGrace / 1_s));
    late_ = true;
    kill_all();
    result_.exit = Exit::peer;
  }

  // Kills and reaps whoever still runs.
  void kill_all() {
    for (Child& child : children_)
      if (!child.ended) ::kill(child.pid, SIGKILL);
    for (Child& child : children_) {
      if (child.ended) continue;
      int status = 0;
      while (::waitpid(child.pid, &status, 0) < 0 && errno == EINTR) {
      }
      child.ended = true;
      child.report.close();
    }
  }

  // Ends this process as the signal would have, so that a shell sees it.
  void end_by(int number) {
    struct sigaction action {};
    action.sa_handler = SIG_DFL;
    sigaction(number, &action, nullptr);
    sigset_t only;
    sigemptyset(&only);
    sigaddset(&only, number);
    ::raise(number);
    sigprocmask(SIG_UNBLOCK, &only, nullptr);
  }

  const LocalJob& job_;
  Signals& signals_;
  const Pipe& news_;
  std::vector<Child> children_;
  LocalResult result_;
  Nanoseconds deadline_ = kNever;
  bool late_ = false;
};

// The rank's side. Never returns.
[[noreturn]] void live_as_rank(const LocalJob& job, pid_t parent, LocalRank rank,
                               const std::function<Exit(LocalRank&)>& body) {
  Exit exit = Exit::environment;
  // A parent that died before the first line here will not be noticed by the second.
  if (::prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || ::getppid() != parent)
    ::_exit(static_cast<int>(Exit::peer));
  for (const auto& [name, value] : job.environment) ::setenv(name.c_str(), value.c_str(), 1);
  try {
    exit = body(rank);
    require_printed();
  } catch (const ToolError& error) {
    error.show(std::string(job.tool) + ": rank " + std::to_string(rank.rank()));
    exit = error.code();
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "%s: rank %d: out of memory; ask for smaller sizes or fewer ranks\n",
                 job.tool, rank.rank());
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s: rank %d: %s\n", job.tool, rank.rank(), error.what());
  }
  std::fflush(stdout);  // what a rank printed before it failed
  ::_exit(static_cast<int>(exit));
}

}  // namespace

noria_unique_id LocalRank::exchange_id() {
  noria_unique_id id{};
  if (rank_ == 0) {
    if (const noria_status status = noria_get_unique_id(&id); status != NORIA_OK) {
      std::array<char, 1024> text{};
      noria_last_error(text.data(), text.size());
      throw ToolError(exit_of(status), text.data());
    }
    for (int to = 1; to < size_; ++to)
      if (::write(pipes_.id_write, &id, sizeof id) != static_cast<ssize_t>(sizeof id))
        throw_errno("write");
  }
  ::close(pipes_.id_write);  // when every rank has, a lost rank 0 is an end of file
  if (rank_ != 0) {
    // Ids are written whole, so each read takes one whole id.
    const ssize_t n = ::read(pipes_.id_read, &id, sizeof id);
    if (n != static_cast<ssize_t>(sizeof id))
      throw ToolError(Exit::peer, "rank 0 ended before it told the job's id");
  }
  ::close(pipes_.id_read);
  return id;
}

void LocalRank::report(std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = ::write(pipes_.report, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) throw_errno("write to the parent");
    text.remove_prefix(static_cast<size_t>(n));
  }
}

std::string LocalRank::take_news() {
  News news;
  // Written whole, so that each read takes one whole copy.
  if (::read(pipes_.news, &news, sizeof news) != static_cast<ssize_t>(sizeof news))
    throw_errno("read from the parent");
  return describe(news);
}

LocalResult run_local_ranks(const LocalJob& job, const std::function<Exit(LocalRank&)>& body) {
  std::fflush(nullptr);  // else each rank would print what the parent had buffered
  const pid_t parent = ::getpid();
  Pipe id, news;
  Signals signals;
  ::fcntl(news.write.get(), F_SETFL, O_NONBLOCK);
  Collector collector(job, signals, news);
  std::vector<int> parents_ends;
  for (int rank = 0; rank < job.size; ++rank) {
    Pipe report;
    const pid_t pid = ::fork();
    if (pid < 0) throw_errno("fork");
    if (pid == 0) {
      sigprocmask(SIG_SETMASK, &signals.before(), nullptr);
      ::close(signals.fd());
      for (const int fd : parents_ends) ::close(fd);
      live_as_rank(job, parent,
                   LocalRank(rank, job.size,
                             {.id_read = id.read.get(),
                              .id_write = id.write.get(),
                              .report = report.write.get(),
                              .news = news.read.get()}),
                   body);
    }
    ::fcntl(report.read.get(), F_SETFL, O_NONBLOCK);
    parents_ends.push_back(report.read.get());
    collector.add(pid, std::move(report.read));
  }
  id.read.close();
  id.write.close();
  return collector.collect();
}

}  // namespace noria::perf
