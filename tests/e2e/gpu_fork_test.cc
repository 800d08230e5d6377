// A rank with a GPU whose process forks: CUDA is of no use in the child, which may call anything of
// its parent's and touches no GPU; the parent's steps go on. The stand-in ends a child that calls.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/device_rank.hpp"

namespace noria::test {
namespace {

// What a child finds of its parent's handles: 0, or the number of the first call that was wrong.
int use_everything(const DeviceRank& mine, noria_work* work, uint64_t memory) {
  const noria_stream stream = mine.stream(mine.consumer);
  auto* const at = reinterpret_cast<void*>(memory);
  const void* result = nullptr;
  noria_comm* child_comm = nullptr;
  noria_reducer* child_reducer = nullptr;
  void* view = nullptr;
  uint64_t view_bytes = 0;
  const noria_status answers[] = {
      noria_comm_status(mine.comm),
      noria_comm_abort(mine.comm, "a child's"),
      noria_comm_split(mine.comm, 0, 0, &child_comm),
      noria_all_reduce(mine.comm, at, at, 1, NORIA_FLOAT32, NORIA_SUM, &stream, nullptr),
      noria_broadcast(mine.comm, at, at, 1, NORIA_FLOAT32, 0, &stream, nullptr),
      noria_barrier(mine.comm, &stream, nullptr),
      noria_work_test(work),
      noria_work_wait(work, 0),
      noria_reducer_create(mine.comm, &mine.config, &child_reducer),
      noria_reducer_view(mine.reducer, kA, &view, &view_bytes),
      noria_step_begin(mine.reducer, 0),
      noria_grad_ready(mine.reducer, kA, at, &stream),
      noria_grad_result(mine.reducer, kA, &stream, 0, &result),
      noria_step_end(mine.reducer, &stream, nullptr),
      noria_reducer_reset(mine.reducer),
  };
  int call = 0;
  for (const noria_status answer : answers) {
    ++call;
    if (answer != NORIA_E_STATE) return call;
  }
  // They leave the parent's alone, and return.
  noria_work_release(work);
  noria_reducer_destroy(mine.reducer);
  noria_comm_destroy(mine.comm);
  return contains(last_error(), "belongs to the process that forked this one") ? 0 : 100;
}

enum class Way { exits, exits_at_once, uses_everything };

void expect_child_ends(Way way, const DeviceRank& mine, noria_work* work, uint64_t memory) {
  std::fflush(nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (way == Way::exits) exit(0);  // with all that runs at the end of a process
    _exit(way == Way::exits_at_once ? 0 : use_everything(mine, work, memory));
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Gpu_fork, In_the_midst_of_a_step_leaves_the_parents_steps_alone) {
  for (const bool arena : {true, false}) {
    const noria_unique_id id = make_job_id();
    run_ranks(2, [&](int32_t rank, Wire&) {
      standin::reset(static_cast<uint64_t>(rank) + 4);
      {
        DeviceRank mine(id, rank, 2, small_model(), device_config(arena));
        mine.seal();
        const uint64_t memory = mine.on.memory<float>(1);
        mine.on.write(mine.consumer, memory, std::vector<float>{1.0F});
        auto* const at = reinterpret_cast<void*>(memory);
        const noria_stream stream = mine.stream(mine.consumer);
        noria_work* work = nullptr;
        expect_ok(noria_all_reduce(mine.comm, at, at, 1, NORIA_FLOAT32, NORIA_SUM, &stream, &work));
        expect_ok(noria_work_wait(work, 0));
        uint64_t step = 0;
        for (const Way way : {Way::exits, Way::exits_at_once, Way::uses_everything}) {
          mine.begin();
          expect_ok(mine.give(kD, step, mine.streams[0]));
          expect_ok(mine.give(kC, step, mine.streams[1]));
          expect_child_ends(way, mine, work, memory);
          expect_ok(mine.give(kB, step, mine.streams[0]));
          expect_ok(mine.give(kA, step, mine.streams[1]));
          expect_ok(mine.end());
          mine.expect_results(step);
          ++step;
        }
        noria_work_release(work);
        EXPECT_EQ(cuStreamSynchronize(mine.consumer), standin::kSuccess);
      }
      EXPECT_EQ(standin::violations(), std::vector<std::string>());
      EXPECT_EQ(standin::objects_alive(), 0U);
    });
  }
}

TEST(Gpu_fork, A_child_that_calls_CUDA_all_the_same_is_ended) {
  run_ranks(1, [](int32_t rank, Wire&) {
    const standin::OnDevice on(rank);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      cuCtxSynchronize();
      _exit(0);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(WEXITSTATUS(status), EXIT_FAILURE);
  });
}

}  // namespace
}  // namespace noria::test
