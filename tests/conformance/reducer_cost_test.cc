// What a gradient may not cost: an allocation, a lock, a system call (property 9 of the conformance
// list). A filter of the kernel ends the process at any call but that which ends the thread; libc's
// malloc counts its calls.
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdlib>

#include "tests/support/crew.hpp"
#include "tests/support/rank_reducer.hpp"
#include "tests/support/thread_ranks.hpp"

namespace {
thread_local bool is_counting = false;
thread_local uint64_t allocations = 0;
void count() { allocations += is_counting ? 1 : 0; }
}  // namespace

extern "C" {
void* __libc_malloc(size_t);
void* __libc_calloc(size_t, size_t);
void* __libc_realloc(void*, size_t);

void* malloc(size_t bytes) {
  count();
  return __libc_malloc(bytes);
}
void* calloc(size_t number, size_t bytes) {
  count();
  return __libc_calloc(number, bytes);
}
void* realloc(void* memory, size_t bytes) {
  count();
  return __libc_realloc(memory, bytes);
}
}

namespace noria::bucketing {
namespace {

// From here on this thread may do nothing but end itself, by exit(2).
bool forbid_calls() {
  sock_filter steps[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  sock_fprog program{.len = 4, .filter = steps};
  return ::prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
         ::prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0;
}

// Of `body`, on a thread that can do nothing else any more. -1: the kernel refused the filter, or
// the body failed.
int allocations_of(const std::function<bool()>& body) {
  std::atomic<int> result{-1};
  std::thread thread([&] {
    // The first look at the clock may set it up; so does a thread's first allocation its heap.
    static_cast<void>(now_ns());
    static void* volatile first = nullptr;
    first = malloc(1024);
    std::free(first);
    if (!forbid_calls()) return;
    is_counting = true;
    const bool is_good = body();
    is_counting = false;
    result = is_good ? static_cast<int>(allocations) : -1;
    ::syscall(SYS_exit, 0);
  });
  thread.join();
  return result.load();
}

void expect_good_end(test::Crew& crew) {
  const test::Ending ending = crew.wait(0);
  EXPECT_EQ(ending.exit_code, 0) << "signal " << ending.signal;
}

TEST(GradientCost, P9_No_allocation_lock_or_system_call_after_the_first_step) {
  for (const bool arena : {true, false}) {
    test::Crew crew({[arena](test::Post&) {
      test::ThreadRanks ranks(1);
      test::RankReducer mine(ranks.host(0), test::small_buckets(arena),
                             {{"a", NORIA_FLOAT32, 100'000}, {"b", NORIA_FLOAT32, 10}});
      test::expect_ok(mine.reducer.seal());
      const auto give = [&] { return mine.fire(0).is_ok() && mine.fire(1).is_ok(); };
      for (int step = 0; step < 2; ++step) {
        for (const uint32_t id : {0U, 1U}) mine.put(id, 1);
        test::expect_ok(mine.reducer.step_begin());
        EXPECT_EQ(step == 0 ? static_cast<int>(!give()) : allocations_of(give), 0);
        test::expect_ok(mine.reducer.step_end());
      }
    }});
    expect_good_end(crew);
  }
}

TEST(GradientCost, The_filter_and_the_count_work) {
  test::Crew counts({[](test::Post&) {
    static void* volatile kept = nullptr;  // the compiler leaves out what is never used
    const auto allocate = [] {
      kept = malloc(16);
      return kept != nullptr;
    };
    EXPECT_EQ(allocations_of(allocate), 1);
  }});
  expect_good_end(counts);
  test::Crew calls({[](test::Post&) { allocations_of([] { return ::getppid() > 0; }); }});
  EXPECT_EQ(calls.wait(0).signal, SIGSYS);
}

}  // namespace
}  // namespace noria::bucketing
