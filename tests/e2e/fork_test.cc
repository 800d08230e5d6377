// A rank whose process forks, as a data loader does for its workers: the parent's steps go on.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "tests/support/c_reducer.hpp"

namespace noria::test {
namespace {

std::vector<Tensor> model() { return awkward_model({NORIA_FLOAT32, NORIA_BFLOAT16}); }

// What a child finds of its parent's handles: 0, or the number of the first call that was wrong.
int use_everything(RankOfJob& mine, noria_work* work) {
  const void* result = nullptr;
  void* child_comm = nullptr;
  float value = 1;
  int32_t number = 0;
  noria_step_info step{.struct_size = sizeof step};
  const noria_status answers[] = {
      noria_comm_status(mine.comm),
      noria_comm_rank(mine.comm, &number),
      noria_comm_abort(mine.comm, "a child's"),
      noria_comm_split(mine.comm, 0, 0, reinterpret_cast<noria_comm**>(&child_comm)),
      noria_all_reduce(mine.comm, &value, &value, 1, NORIA_FLOAT32, NORIA_SUM, nullptr, nullptr),
      noria_barrier(mine.comm, nullptr, nullptr),
      noria_work_test(work),
      noria_work_wait(work, 0),
      noria_grad_ready(mine.reducer, 0, nullptr, nullptr),
      noria_grad_result(mine.reducer, 0, nullptr, 0, &result),
      noria_step_end(mine.reducer, nullptr, nullptr),
      noria_reducer_reset(mine.reducer),
      noria_observe_step(mine.reducer, &step),
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

void expect_child_ends(Way way, RankOfJob& mine, noria_work* work) {
  std::fflush(nullptr);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    if (way == Way::exits) exit(0);  // with all that runs at the end of a process
    _exit(way == Way::exits_at_once ? 0 : use_everything(mine, work));
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status)) << "signal " << WTERMSIG(status);
  EXPECT_EQ(WEXITSTATUS(status), 0);
}

TEST(Fork, In_the_midst_of_a_step_leaves_the_parents_steps_alone) {
  for (const bool arena : {true, false}) {
    const noria_unique_id id = make_job_id();
    run_ranks(2, [&](int32_t rank, Wire&) {
      RankOfJob mine(id, rank, 2, model(), {.arena = arena});
      expect_ok(noria_reducer_seal(mine.reducer));
      int64_t value = 1;
      noria_work* work = nullptr;
      expect_ok(
          noria_all_reduce(mine.comm, &value, &value, 1, NORIA_INT64, NORIA_SUM, nullptr, &work));
      expect_ok(noria_work_wait(work, 0));
      uint64_t step = 0;
      for (const Way way : {Way::exits, Way::exits_at_once, Way::uses_everything}) {
        expect_ok(noria_step_begin(mine.reducer, 0));
        const auto tensors = static_cast<uint32_t>(mine.model.size());
        for (uint32_t t = tensors; t-- > tensors / 2;) expect_ok(mine.give(t, step));
        expect_child_ends(way, mine, work);
        for (uint32_t t = tensors / 2; t-- > 0;) expect_ok(mine.give(t, step));
        expect_ok(noria_step_end(mine.reducer, nullptr, nullptr));
        for (uint32_t t = 0; t < tensors; ++t)
          expect_reduced(mine.result(t), mine.model[t], step, 2, NORIA_AVG);
        mine.run_good_step(step + 1, 3, 2);
        step += 2;
      }
      noria_work_release(work);
    });
  }
}

TEST(Fork, A_child_that_lives_on_does_not_hide_its_parents_death) {
  const noria_unique_id id = make_job_id();
  RankCrew crew(2, [&](int32_t rank, Wire& parent) {
    RankOfJob mine(id, rank, 2, model(), {});
    expect_ok(noria_barrier(mine.comm, nullptr, nullptr));
    if (rank == 1) {
      const pid_t child = fork();
      if (child == 0) {
        // A data loader's worker. The test ends it, by the wire.
        parent.send(getpid());
        ::poll(nullptr, 0, 60'000);
        _exit(0);
      }
      ::poll(nullptr, 0, 60'000);  // until it is killed
      return;
    }
    parent.meet();  // through the first barrier
    parent.meet();  // rank 1 is dead
    expect_failure(noria_barrier(mine.comm, nullptr, nullptr), NORIA_E_PEER, "rank 1 died");
  });
  const auto child = crew.wire(1).recv<pid_t>();
  crew.wire(0).meet();
  crew.kill(1, SIGKILL);
  crew.wire(0).meet();
  crew.expect_success({1});
  ::kill(child, SIGKILL);
}

TEST(Fork, A_child_may_make_a_communicator_of_its_own) {
  Crew crew({[](Post&) {
    noria_comm_config config = NORIA_COMM_CONFIG_INIT;
    config.rank = 0;
    config.size = 1;
    noria_comm* comm = nullptr;
    expect_ok(noria_comm_create(&config, &comm));
    const pid_t child = fork();
    if (child == 0) {
      noria_comm* own = nullptr;
      const bool is_made = noria_comm_create(&config, &own) == NORIA_OK;
      const bool works = is_made && noria_barrier(own, nullptr, nullptr) == NORIA_OK;
      const bool is_refused = noria_barrier(comm, nullptr, nullptr) == NORIA_E_STATE;
      noria_comm_destroy(own);
      _exit(works && is_refused ? 0 : 1);
    }
    int status = -1;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
    expect_ok(noria_barrier(comm, nullptr, nullptr));
    noria_comm_destroy(comm);
  }});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
}

}  // namespace
}  // namespace noria::test
