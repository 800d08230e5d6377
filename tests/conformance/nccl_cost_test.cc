// What a message through the plugin may not cost, and a choice of its tuner: an allocation, a lock,
// a system call. Each version's isend, irecv and test are run between two marks, and its choices.
// From the first on a filter of the kernel stops this thread at any system call, and malloc and the
// locks of libc count their calls; at the second the process reports and ends. The device is inside
// the marks too.
//
// Both ends are queue pairs of one process, where a message is there when isend returns. And what a
// thousand connections of a process cost each.

#include <dlfcn.h>
#include <errno.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <malloc.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdarg>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <type_traits>
#include <vector>

#include "base/clock.hpp"
#include "base/dl.hpp"
#include "base/units.hpp"
#include "plugin/abi/caller.hpp"
#include "plugin/abi/log_text.hpp"
#include "plugin/abi/tuner.hpp"

namespace noria::test {
namespace {

thread_local bool is_counting = false;  // between the marks, on their thread
thread_local uint64_t allocations = 0;
thread_local uint64_t locks = 0;

// The next definition of a function that this program puts itself before.
template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

void count(uint64_t* what) { *what += is_counting ? 1 : 0; }

}  // namespace
}  // namespace noria::test

// ---- before libc's own: what the plugin and the device call ---------------------------------

extern "C" {

void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);
void* __libc_memalign(size_t, size_t);

void* malloc(size_t bytes) {
  noria::test::count(&noria::test::allocations);
  return __libc_malloc(bytes);
}
void* calloc(size_t count, size_t bytes) {
  noria::test::count(&noria::test::allocations);
  return __libc_calloc(count, bytes);
}
void* realloc(void* memory, size_t bytes) {
  noria::test::count(&noria::test::allocations);
  return __libc_realloc(memory, bytes);
}
void* memalign(size_t alignment, size_t bytes) {
  noria::test::count(&noria::test::allocations);
  return __libc_memalign(alignment, bytes);
}
void* aligned_alloc(size_t alignment, size_t bytes) { return memalign(alignment, bytes); }
int posix_memalign(void** memory, size_t alignment, size_t bytes) {
  if (alignment % sizeof(void*) != 0 || (alignment & (alignment - 1)) != 0 || alignment == 0)
    return EINVAL;
  void* const made = memalign(alignment, bytes);
  if (made == nullptr) return ENOMEM;
  *memory = made;
  return 0;
}

#define NORIA_TEST_LOCK(name, type)                                    \
  int name(type* lock) noexcept {                                      \
    static const auto libc = noria::test::next<int (*)(type*)>(#name); \
    noria::test::count(&noria::test::locks);                           \
    return libc(lock);                                                 \
  }
NORIA_TEST_LOCK(pthread_mutex_lock, pthread_mutex_t)
NORIA_TEST_LOCK(pthread_mutex_trylock, pthread_mutex_t)
NORIA_TEST_LOCK(pthread_rwlock_rdlock, pthread_rwlock_t)
NORIA_TEST_LOCK(pthread_rwlock_tryrdlock, pthread_rwlock_t)
NORIA_TEST_LOCK(pthread_rwlock_wrlock, pthread_rwlock_t)
NORIA_TEST_LOCK(pthread_rwlock_trywrlock, pthread_rwlock_t)
NORIA_TEST_LOCK(pthread_spin_lock, pthread_spinlock_t)
NORIA_TEST_LOCK(pthread_spin_trylock, pthread_spinlock_t)
#undef NORIA_TEST_LOCK

}  // extern "C"

namespace noria::test {
namespace {

namespace abi = plugin::abi;

constexpr Nanoseconds kPatience = 30_s;
// The 4096th empty poll looks at the control socket, which takes system calls.
constexpr int kEmptyTests = 4000;

// ---- the marks --------------------------------------------------------------------------------

struct Cost {
  int64_t system_call = -1;  // the first that was stopped; none
  uint64_t allocations = 0;
  uint64_t locks = 0;
  uint64_t messages = 0;  // that came through
};

int report_fd = -1;

template <class Told>
[[noreturn]] void report(const Told& told) {
  const ssize_t written = ::write(report_fd, &told, sizeof told);
  ::_exit(written == sizeof told ? 0 : 1);
}

void on_stopped(int, siginfo_t* info, void*) { report(Cost{.system_call = info->si_syscall}); }

// From here on a system call of this thread ends the process, with its number in the report.
void first_mark() {
  struct sigaction action {};
  action.sa_sigaction = on_stopped;
  action.sa_flags = SA_SIGINFO;
  ASSERT_EQ(sigaction(SIGSYS, &action, nullptr), 0);
  const auto fd = static_cast<uint32_t>(report_fd);
  std::array<sock_filter, 8> filter{{
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 4, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit_group, 3, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_write, 0, 3),
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, args)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, fd, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
  }};
  const sock_fprog program{.len = filter.size(), .filter = filter.data()};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0) << errno;
  is_counting = true;
}

[[noreturn]] void second_mark(uint64_t messages) {
  is_counting = false;
  report(Cost{.allocations = allocations, .locks = locks, .messages = messages});
}

// What `body` reports, in a process of its own.
template <class Told = Cost>
Told cost_of(const std::function<void()>& body) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    report_fd = ends[1];
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    ::_exit(1);  // it failed before it could
  }
  close(ends[1]);
  Told told;
  pollfd ready{.fd = ends[0], .events = POLLIN, .revents = 0};
  const bool in_time = poll(&ready, 1, static_cast<int>(kPatience / 1_ms)) == 1;
  const bool is_whole = in_time && read(ends[0], &told, sizeof told) == sizeof told;
  EXPECT_TRUE(is_whole) << "the process ended without a report";
  close(ends[0]);
  kill(pid, SIGKILL);
  waitpid(pid, nullptr, 0);
  return told;
}

std::string name_of(int64_t system_call) {
  switch (system_call) {
    case -1: return "none";
    case SYS_read: return "read";
    case SYS_write: return "write";
    case SYS_mmap: return "mmap";
    case SYS_munmap: return "munmap";
    case SYS_brk: return "brk";
    case SYS_futex: return "futex";
    case SYS_ioctl: return "ioctl";
    case SYS_fcntl: return "fcntl";
    case SYS_recvfrom: return "recvfrom";
    case SYS_sendto: return "sendto";
    case SYS_ppoll: return "ppoll";
    case SYS_sched_yield: return "sched_yield";
    case SYS_clock_gettime: return "clock_gettime";
    case SYS_process_vm_readv: return "process_vm_readv";
    case SYS_process_vm_writev: return "process_vm_writev";
    default: return "number " + std::to_string(system_call);
  }
}

// ---- the traffic ------------------------------------------------------------------------------

// What went wrong in a child. Silent between the marks, where a line would be a call of our own.
void log_warnings(abi::LogLevel level, unsigned long, const char*, int, const char* format, ...) {
  if (level != abi::LogLevel::warn || is_counting) return;
  va_list args;
  va_start(args, format);
  std::fprintf(stderr, "%s\n", abi::log_text(format, args).c_str());
  va_end(args);
}

// A connection of this process with itself.
struct Pair {
  explicit Pair(int version)
      : library(*SharedObject::open(NORIA_NET_PLUGIN_FILE)),
        net(abi::make_caller(version, library.find(abi::table_symbol(version).c_str()))) {
    must(net->init(&context, log_warnings));
    connect();
    must(net->reg_mr(sender, from.data(), from.size(), abi::kPointerHost, &sent_from));
    must(net->reg_mr(receiver, to.data(), to.size(), abi::kPointerHost, &received_to));
  }

  // Once more leaves the connection that was there open.
  void connect() {
    sender = receiver = nullptr;
    std::array<char, abi::kHandleBytes> handle{};
    void* listener = nullptr;
    must(net->listen(context, 0, handle.data(), &listener));
    const Nanoseconds deadline = now_ns() + kPatience;
    while ((sender == nullptr || receiver == nullptr) && now_ns() < deadline) {
      if (sender == nullptr) must(net->connect(context, 0, handle.data(), &sender));
      if (receiver == nullptr) must(net->accept(listener, &receiver));
    }
    must(net->close_listen(listener));
  }
  // A child has no test to fail: it ends without a report.
  static void must(abi::Result result) {
    if (result != abi::Result::success) ::_exit(1);
  }
  bool is_done(void* request, int* bytes) {
    int done = 0;
    must(net->test(request, &done, bytes));
    return done == 1;
  }
  // One message, with an empty test of the receive while nothing has come; whether it came whole.
  bool message(size_t bytes, bool with_empty_test) {
    void* data = to.data();
    size_t room = bytes;
    int tag = 0;
    void* received = nullptr;
    void* sent = nullptr;
    int length = -1;
    must(net->irecv(receiver, 1, &data, &room, &tag, &received_to, &received));
    if (received == nullptr) return false;
    if (with_empty_test && is_done(received, &length)) return false;
    must(net->isend(sender, from.data(), bytes, tag, sent_from, &sent));
    return sent != nullptr && is_done(received, &length) && is_done(sent, nullptr) &&
           static_cast<size_t>(length) == bytes;
  }

  SharedObject library;
  std::unique_ptr<abi::Caller> net;
  std::vector<std::byte> from = std::vector<std::byte>(512_KiB, std::byte{1});
  std::vector<std::byte> to = std::vector<std::byte>(512_KiB);
  void* context = nullptr;
  void* sender = nullptr;
  void* receiver = nullptr;
  void* sent_from = nullptr;
  void* received_to = nullptr;
};

class NcclCost : public testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() { setenv("NORIA_SOFT", "1", 1); }
};

// More messages than any window, batch or queue holds, so that each is replenished meanwhile.
void pass_messages(Pair& pair) {
  for (int i = 0; i < 500; ++i) static_cast<void>(pair.message(i % 2 == 0 ? 8 : 512_KiB, false));
  first_mark();
  uint64_t messages = 0;
  for (int i = 0; i < 2 * kEmptyTests; ++i)
    messages += pair.message(i % 16 == 0 ? 512_KiB : 8, i % 2 == 0) ? 1 : 0;
  second_mark(messages);
}

void expect_free(const Cost& cost) {
  EXPECT_EQ(name_of(cost.system_call), "none");
  EXPECT_EQ(cost.allocations, 0u);
  EXPECT_EQ(cost.locks, 0u);
  EXPECT_EQ(cost.messages, 2u * kEmptyTests);
}

TEST_P(NcclCost, A_message_takes_no_allocation_no_lock_and_no_system_call) {
  expect_free(cost_of([] {
    Pair pair(GetParam());
    pass_messages(pair);
  }));
}

TEST_P(NcclCost, Nor_does_one_that_is_cut_over_four_queue_pairs) {
  expect_free(cost_of([] {
    setenv("NORIA_QPS_PER_CONNECTION", "4", 1);
    Pair pair(GetParam());
    pass_messages(pair);
  }));
}

INSTANTIATE_TEST_SUITE_P(Versions, NcclCost,
                         testing::Range(abi::kOldestVersion, abi::kNewestVersion + 1),
                         [](const auto& version) { return "v" + std::to_string(version.param); });

// ---- choices ----------------------------------------------------------------------------------

// 10 000 rows, one behind the other.
std::string long_table() {
  std::string text = "noria_table,1\n";
  for (int i = 0; i < 10'000; ++i)
    text += "all_reduce," + std::to_string(i) + "K-" + std::to_string(i + 1) + "K,2,8,*,*,*,*," +
            (i % 2 == 0 ? "Ring,Simple" : "Tree,LL") + ",0,64K,1,1,of this test\n";
  return text;
}

// Asks for operations of all sizes, and counts those for which a row was found.
template <class Tuner>
void choose_all(const Tuner& tuner) {
  void* context = nullptr;
  abi::TunerConstants constants{};
  abi::NvlDomains domains{2, 8, 8};
  if constexpr (requires { tuner.destroy; })
    Pair::must(tuner.init(16, 2, log_warnings, &context));
  else
    Pair::must(tuner.init(&context, 1, 16, 2, log_warnings, &domains, &constants));
  first_mark();
  uint64_t chosen = 0;
  for (size_t i = 0; i < 2 * kEmptyTests; ++i) {
    std::array<float, size_t{abi::kTunerAlgorithms} * abi::kTunerProtocols> costs;
    costs.fill(100);
    auto** const table = reinterpret_cast<float**>(costs.data());
    const size_t bytes = i << 10;
    int algorithm = -1, protocol = -1, channels = 0;
    if constexpr (std::is_same_v<Tuner, abi::TunerV2>) {
      Pair::must(tuner.get_choice(context, 4, bytes, 0, 1, 1, &algorithm, &protocol, &channels));
      chosen += algorithm >= 0 ? 1 : 0;
      continue;
    } else if constexpr (std::is_same_v<Tuner, abi::TunerV3>) {
      Pair::must(tuner.get_choice(context, 4, bytes, 1, table, abi::kTunerAlgorithms,
                                  abi::kTunerProtocols, &channels));
    } else {
      Pair::must(tuner.get_choice(context, 4, bytes, 1, table, abi::kTunerAlgorithms,
                                  abi::kTunerProtocols, 0, &channels));
    }
    if constexpr (std::is_same_v<Tuner, abi::TunerV6>) {
      size_t chunk = 0;
      Pair::must(
          tuner.get_chunk(context, 4, bytes, i % 2 == 0 ? 1 : 0, i % 2 == 0 ? 2 : 0, 1, &chunk));
      if (chunk != 64_KiB) continue;
    }
    for (const float cost : costs) chosen += cost == 0 ? 1 : 0;
  }
  second_mark(chosen);
}

class NcclTunerCost : public testing::TestWithParam<int> {};

TEST_P(NcclTunerCost, A_choice_among_10000_rows_takes_no_allocation_no_lock_and_no_system_call) {
  const std::string path = testing::TempDir() + "noria_cost_" + std::to_string(getpid()) + ".csv";
  std::ofstream(path) << long_table();
  setenv("NORIA_SOFT", "1", 1);
  setenv("NORIA_TUNER_TABLE", path.c_str(), 1);
  expect_free(cost_of([] {
    const SharedObject library = *SharedObject::open(NORIA_NET_PLUGIN_FILE);
    const std::string name = "ncclTunerPlugin_v" + std::to_string(GetParam());
    const void* const table = library.find(name.c_str());
    switch (GetParam()) {
      case 2: return choose_all(*static_cast<const abi::TunerV2*>(table));
      case 3: return choose_all(*static_cast<const abi::TunerV3*>(table));
      case 4: return choose_all(*static_cast<const abi::TunerV4*>(table));
      case 5: return choose_all(*static_cast<const abi::TunerV5*>(table));
      default: return choose_all(*static_cast<const abi::TunerV6*>(table));
    }
  }));
  unsetenv("NORIA_TUNER_TABLE");
  unlink(path.c_str());
}

INSTANTIATE_TEST_SUITE_P(Versions, NcclTunerCost, testing::Range(2, 7),
                         [](const auto& version) { return "v" + std::to_string(version.param); });

// ---- connections --------------------------------------------------------------------------------

struct ConnectionCost {
  uint64_t early_allocations = 0;  // of the first hundred, the device's included
  uint64_t late_allocations = 0;   // of the last hundred
  uint64_t resident_kib = 0;       // of one end
  bool has_descriptors = true;
};

uint64_t resident_kib() {
  std::ifstream statm("/proc/self/statm");
  uint64_t all = 0, resident = 0;
  statm >> all >> resident;
  return resident * static_cast<uint64_t>(sysconf(_SC_PAGESIZE)) / 1024;
}

TEST(NcclCostOfConnections,
     A_thousand_ends_cost_as_much_work_each_as_the_first_and_at_most_256_KiB) {
  setenv("NORIA_SOFT", "1", 1);
  const auto cost = cost_of<ConnectionCost>([] {
    // Both ends of 500 connections: the software HCA has 1024 completion queues a process.
    constexpr uint64_t kCount = 500, kStretch = 100;
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    files.rlim_cur = files.rlim_max;
    setrlimit(RLIMIT_NOFILE, &files);
    if (files.rlim_cur < 4 * kCount) report(ConnectionCost{.has_descriptors = false});

    Pair pair(abi::kNewestVersion);
    const auto allocations_of_a_stretch = [&] {
      allocations = 0;
      is_counting = true;
      for (uint64_t i = 0; i < kStretch; ++i) pair.connect();
      is_counting = false;
      return allocations;
    };
    const uint64_t before_kib = resident_kib();
    ConnectionCost told{.early_allocations = allocations_of_a_stretch()};
    for (uint64_t i = 0; i < kCount - 2 * kStretch; ++i) pair.connect();
    told.late_allocations = allocations_of_a_stretch();
    told.resident_kib = (resident_kib() - before_kib) / (2 * kCount);
    report(told);
  });
  if (!cost.has_descriptors) GTEST_SKIP() << "`ulimit -Hn` is below 2000 descriptors";
  EXPECT_GT(cost.early_allocations, 0u);
  EXPECT_LE(cost.late_allocations, cost.early_allocations + cost.early_allocations / 10);
  EXPECT_GT(cost.resident_kib, 0u);
  EXPECT_LE(cost.resident_kib, 256u);
  RecordProperty("resident_kib", std::to_string(cost.resident_kib));
}

// ---- that the marks see -------------------------------------------------------------------------

TEST(NcclCostMarks, The_look_at_device_and_control_socket_is_seen_as_a_system_call) {
  setenv("NORIA_SOFT", "1", 1);
  const Cost cost = cost_of([] {
    Pair pair(abi::kNewestVersion);
    void* data = pair.to.data();
    size_t room = 8;
    int tag = 0;
    void* received = nullptr;
    Pair::must(pair.net->irecv(pair.receiver, 1, &data, &room, &tag, &pair.received_to, &received));
    first_mark();
    for (int i = 0; i < 4097; ++i) static_cast<void>(pair.is_done(received, nullptr));
    second_mark(0);
  });
  // The first: the software HCA asks whether the descriptor of its events may block.
  EXPECT_EQ(name_of(cost.system_call), "fcntl");
}

// What libc has of either: the linker takes ours, also where another library calls.
TEST(NcclCostMarks, Every_way_to_allocate_and_every_lock_is_counted) {
  const Cost cost = cost_of([] {
    pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_rwlock_t rwlock = PTHREAD_RWLOCK_INITIALIZER;
    pthread_spinlock_t spinlock{};
    pthread_spin_init(&spinlock, PTHREAD_PROCESS_PRIVATE);
    void* aligned = nullptr;
    // Kept where all could see it: the compiler leaves out what is never used.
    [[maybe_unused]] static void* volatile kept = nullptr;
    const auto is_made = [](void* memory) {
      kept = memory;
      return memory != nullptr;
    };
    bool is_good = true;
    is_counting = true;
    is_good &= is_made(malloc(64)) && is_made(calloc(1, 64)) && is_made(realloc(nullptr, 64));
    is_good &= is_made(memalign(64, 64)) && is_made(aligned_alloc(64, 64));
    is_good &= posix_memalign(&aligned, 64, 64) == 0 && is_made(aligned);
    is_good &= pthread_mutex_lock(&mutex) == 0 && pthread_mutex_unlock(&mutex) == 0;
    is_good &= pthread_mutex_trylock(&mutex) == 0;
    is_good &= pthread_rwlock_rdlock(&rwlock) == 0 && pthread_rwlock_tryrdlock(&rwlock) == 0;
    is_good &= pthread_rwlock_unlock(&rwlock) == 0 && pthread_rwlock_unlock(&rwlock) == 0;
    is_good &= pthread_rwlock_wrlock(&rwlock) == 0 && pthread_rwlock_unlock(&rwlock) == 0;
    is_good &= pthread_rwlock_trywrlock(&rwlock) == 0;
    is_good &= pthread_spin_lock(&spinlock) == 0 && pthread_spin_unlock(&spinlock) == 0;
    is_good &= pthread_spin_trylock(&spinlock) == 0;
    is_counting = false;
    second_mark(is_good ? 1 : 0);
  });
  EXPECT_EQ(cost.messages, 1u) << "one of them failed";
  EXPECT_EQ(cost.allocations, 6u);
  EXPECT_EQ(cost.locks, 8u);
}

TEST(NcclCostMarks, Allocations_and_locks_of_the_plugin_are_counted) {
  setenv("NORIA_SOFT", "1", 1);
  const Cost cost = cost_of([] {
    Pair pair(abi::kNewestVersion);
    void* data = pair.to.data() + pair.to.size();
    size_t room = 8;
    int tag = 0;
    void* refused = nullptr;
    first_mark();
    // A set-up call takes the registry's lock; a receive outside of the registered memory has its
    // line composed.
    int count = 0;
    Pair::must(pair.net->devices(&count));
    Pair::must(pair.net->irecv(pair.receiver, 1, &data, &room, &tag, &pair.received_to, &refused));
    if (pair.net->test(refused, &count, nullptr) == abi::Result::success) ::_exit(1);
    second_mark(0);
  });
  EXPECT_EQ(name_of(cost.system_call), "none");
  EXPECT_GT(cost.allocations, 0u);
  EXPECT_GT(cost.locks, 0u);
}

}  // namespace
}  // namespace noria::test
