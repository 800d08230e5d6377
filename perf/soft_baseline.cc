// soft_baseline: what this machine can do at best between two processes, without any device: the
// other side of the ratios that compare_perftest prints.
//
// Its parent forks one child; the two meet in a page that both see. It links nothing of noria's
// transport or device, which is why it may call the kernel's copy itself.

#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/clock.hpp"
#include "base/units.hpp"
#include "perf/command_line.hpp"
#include "perf/machine.hpp"

namespace noria::perf {
namespace {

constexpr const char* kName = "soft_baseline";

struct Meeting {
  alignas(64) std::atomic<uint64_t> ping{0};
  alignas(64) std::atomic<uint64_t> pong{0};
  alignas(64) std::atomic<bool> is_over{false};
};

struct Sides {
  Meeting* meeting;
  pid_t parent, child;
  std::atomic<uint64_t>* inbox;  // at the same address in both, each its own
};

// One call of the kernel's copy into the other process, to the same address there.
void copy_to(pid_t other, const void* from, void* to, size_t bytes) {
  const iovec local{const_cast<void*>(from), bytes};
  const iovec remote{to, bytes};
  if (::process_vm_writev(other, &local, 1, &remote, 1, 0) != static_cast<ssize_t>(bytes))
    throw ToolError(
        Exit::environment,
        std::string("the kernel refuses to copy between processes: ") + std::strerror(errno));
}

// Calls a second.
double write_rate(const Sides& sides, void* buffer, size_t bytes, Nanoseconds length) {
  const Nanoseconds start = now_ns();
  Nanoseconds end = start;
  uint64_t calls = 0;
  for (; end - start < length; end = now_ns(), calls += 16)
    for (int i = 0; i < 16; ++i) copy_to(sides.child, buffer, buffer, bytes);
  return static_cast<double>(calls) * 1e9 / static_cast<double>(end - start);
}

// The child's half of both ping-pongs ends when the parent says so.
template <class Answer>
void answer(const std::atomic<uint64_t>& in, const std::atomic<bool>& is_over, Answer answer) {
  for (uint64_t turn = 1; !is_over.load(std::memory_order_relaxed);) {
    if (in.load(std::memory_order_acquire) != turn) continue;
    answer(turn++);
  }
}

// Microseconds one way.
template <class Ask>
double half_turn(const std::atomic<uint64_t>& in, Nanoseconds length, Ask ask) {
  const Nanoseconds start = now_ns();
  Nanoseconds end = start;
  uint64_t turn = 0;
  for (; end - start < length; end = now_ns()) {
    for (int i = 0; i < 64; ++i) {
      ask(++turn);
      while (in.load(std::memory_order_acquire) != turn) {
      }
    }
  }
  return static_cast<double>(end - start) * 1e-3 / static_cast<double>(turn) / 2;
}

void be_child(const std::string& mode, const Sides& sides) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  Meeting& meeting = *sides.meeting;
  if (mode == "attach")
    answer(*sides.inbox, meeting.is_over,
           [&](uint64_t turn) { copy_to(sides.parent, &turn, sides.inbox, sizeof turn); });
  else if (mode == "flag")
    answer(meeting.ping, meeting.is_over,
           [&](uint64_t turn) { meeting.pong.store(turn, std::memory_order_release); });
  else
    ::pause();  // the target of a write is idle
}

double measure(const std::string& mode, const Sides& sides, void* buffer, size_t bytes,
               Nanoseconds length) {
  Meeting& meeting = *sides.meeting;
  if (mode == "attach")
    return half_turn(*sides.inbox, length,
                     [&](uint64_t turn) { copy_to(sides.child, &turn, sides.inbox, sizeof turn); });
  if (mode == "flag")
    return half_turn(meeting.pong, length,
                     [&](uint64_t turn) { meeting.ping.store(turn, std::memory_order_release); });
  return write_rate(sides, buffer, bytes, length);
}

int body(int argc, char** argv) {
  CLI::App app(
      "Prints one number: what two processes of this machine can do without a device.\n"
      "  write   calls a second that write --bytes into an idle process (process_vm_writev)\n"
      "  attach  microseconds one way of an 8-byte ping-pong by such calls\n"
      "  flag    microseconds one way of a ping-pong over a flag in shared memory\n"
      "Exit: 0, 2 usage, 3 the kernel forbids it.",
      kName);
  std::string mode = "write", bytes = "65536";
  double seconds = 1;
  app.add_option("mode", mode, "write, attach or flag")
      ->required()
      ->check(CLI::IsMember({"write", "attach", "flag"}));
  app.add_option("--bytes", bytes, "of a write (64K)")->transform(byte_size(1, 1_GiB));
  app.add_option("--seconds", seconds, "length (1)")->check(real_number(0.01, 600));
  if (parse_command_line(app, argc, argv)) return 0;

  const size_t size = std::stoull(bytes);
  void* shared =
      ::mmap(nullptr, sizeof(Meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) throw std::bad_alloc();
  const Buffer buffer(size), inbox(sizeof(uint64_t));
  std::memset(buffer.get(), 1, size);
  Sides sides{new (shared) Meeting, ::getpid(), 0, new (inbox.get()) std::atomic<uint64_t>(0)};
  sides.child = ::fork();
  if (sides.child == 0) {
    std::memset(buffer.get(), 2, size);  // pages of its own
    be_child(mode, sides);
    ::_exit(0);
  }
  const double value =
      measure(mode, sides, buffer.get(), size, static_cast<Nanoseconds>(seconds * 1e9));
  sides.meeting->is_over.store(true, std::memory_order_relaxed);
  ::kill(sides.child, SIGKILL);
  ::waitpid(sides.child, nullptr, 0);
  std::printf("%.6g\n", value);
  return 0;
}

}  // namespace
}  // namespace noria::perf

int main(int argc, char** argv) {
  return noria::perf::run_tool(noria::perf::kName, &noria::perf::body, argc, argv);
}
