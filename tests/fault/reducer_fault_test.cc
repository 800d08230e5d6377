// Steps while ranks die or stand still.
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <algorithm>
#include <functional>

#include "tests/support/c_reducer.hpp"

namespace noria::test {
namespace {

std::vector<Tensor> model() {
  return awkward_model({NORIA_FLOAT32, NORIA_FLOAT16, NORIA_BFLOAT16, NORIA_FLOAT64});
}

// Rank `victim` gives half of its gradients, then waits to be killed.
void expect_death_is_named(int32_t size, int32_t victim, const JobConfig& config = {}) {
  const noria_unique_id id = make_job_id();
  RankCrew crew(size, [&](int32_t rank, Wire& parent) {
    RankOfJob mine(id, rank, size, model(), config);
    expect_ok(noria_reducer_seal(mine.reducer));
    mine.run_good_step(0, 1, 2);
    expect_ok(noria_step_begin(mine.reducer, 0));
    if (rank == victim) {
      for (uint32_t i = 0; i < mine.model.size() / 2; ++i)
        expect_ok(mine.give(static_cast<uint32_t>(mine.model.size()) - 1 - i, 1));
      parent.meet();
      ::poll(nullptr, 0, 30'000);  // the parent's kill ends it
      return;
    }
    parent.meet();
    mine.give_all(1, 5, 2);
    const Nanoseconds before = now_ns();
    expect_failure(noria_step_end(mine.reducer, nullptr, nullptr), NORIA_E_PEER,
                   "rank " + std::to_string(victim));
    EXPECT_LT(now_ns() - before, 20_s);  // a bound on the wait, not a measure of it
    // For good: the communicator can only be destroyed.
    expect_failure(noria_reducer_reset(mine.reducer), NORIA_E_PEER,
                   "rank " + std::to_string(victim));
    expect_failure(noria_step_begin(mine.reducer, 0), NORIA_E_PEER,
                   "rank " + std::to_string(victim));
  });
  for (int32_t rank = 0; rank < size; ++rank) crew.wire(rank).meet();
  crew.kill(victim, SIGKILL);
  crew.expect_success({victim});
}

TEST(ReducerFaults, P4_A_rank_killed_in_a_step_is_named_by_all_others) {
  expect_death_is_named(3, 2);
}
TEST(ReducerFaults, Rank_0_killed_in_a_step_is_named_by_all_others) { expect_death_is_named(3, 0); }

TEST(ReducerFaults, A_rank_killed_while_gradients_wait_for_a_slot_is_named_by_all_others) {
  expect_death_is_named(3, 1, {.arena = false, .bucket_bytes = 65'536, .max_in_flight = 1});
}

void expect_a_pause_is_waited_for(const JobConfig& config) {
  const noria_unique_id id = make_job_id();
  RankCrew crew(2, [&](int32_t rank, Wire& parent) {
    RankOfJob mine(id, rank, 2, model(), config);
    expect_ok(noria_reducer_seal(mine.reducer));
    expect_ok(noria_step_begin(mine.reducer, 0));
    if (rank == 1) parent.meet();
    mine.give_all(0, 1, 2);
    expect_ok(noria_step_end(mine.reducer, nullptr, nullptr));
    for (uint32_t tensor = 0; tensor < mine.model.size(); ++tensor)
      expect_reduced(mine.result(tensor), mine.model[tensor], 0, 2, NORIA_AVG);
    mine.run_good_step(1, 2, 1);
  });
  crew.wire(1).meet();
  crew.kill(1, SIGSTOP);
  ::poll(nullptr, 0, 1500);  // longer than a heartbeat; how long it really stands decides nothing
  crew.kill(1, SIGCONT);
  crew.expect_success();
}
TEST(ReducerFaults, A_rank_that_stands_still_for_a_while_is_waited_for) {
  expect_a_pause_is_waited_for({});
  expect_a_pause_is_waited_for({.arena = false, .bucket_bytes = 65'536, .max_in_flight = 1});
}

// Rank 0 waits in noria_step_end() for buckets that its last ones, or a hook, are to follow.
void expect_a_bound_while_buckets_follow(JobConfig config, noria_bucket_hook after) {
  config.timeout_ms = 2'000;
  const noria_unique_id id = make_job_id();
  RankCrew crew(2, [&](int32_t rank, Wire& parent) {
    RankOfJob mine(id, rank, 2, model(), config);
    if (after != nullptr)
      expect_ok(noria_reducer_set_hook(mine.reducer, NORIA_HOOK_AFTER, after, nullptr));
    expect_ok(noria_reducer_seal(mine.reducer));
    expect_ok(noria_step_begin(mine.reducer, 0));
    if (rank == 0) mine.give_all(0, 1, 1);
    if (rank == 1) parent.meet();  // after rank 0 gave up
    expect_failure(noria_step_end(mine.reducer, nullptr, nullptr), NORIA_E_TIMEOUT, "rank 1");
    if (rank == 0) parent.meet();
  });
  crew.wire(0).meet();
  crew.wire(1).meet();
  crew.expect_success();
}
extern "C" int32_t look_on(const noria_hook_bucket*, char*, size_t, void*) { return 0; }

TEST(ReducerFaults, C34_A_rank_for_which_gradients_wait_for_a_slot_is_named_by_the_time_out) {
  expect_a_bound_while_buckets_follow({.arena = false, .bucket_bytes = 65'536, .max_in_flight = 1},
                                      nullptr);
}
TEST(ReducerFaults, C34_A_rank_for_which_a_hook_waits_is_named_by_the_time_out) {
  expect_a_bound_while_buckets_follow({}, &look_on);
}

// Rank 1's does not return before its peer gave up.
extern "C" int32_t wait_for_peer(const noria_hook_bucket* bucket, char*, size_t, void* user) {
  if (user != nullptr && bucket->bucket == 1) static_cast<Wire*>(user)->meet();
  return 0;
}

TEST(ReducerFaults, C34_A_rank_whose_hook_does_not_return_from_results_is_named_with_it) {
  const noria_unique_id id = make_job_id();
  RankCrew crew(2, [&](int32_t rank, Wire& parent) {
    RankOfJob mine(id, rank, 2, model(), {.timeout_ms = 2'000});
    expect_ok(noria_reducer_set_hook(mine.reducer, NORIA_HOOK_AFTER, &wait_for_peer,
                                     rank == 1 ? &parent : nullptr));
    expect_ok(noria_reducer_seal(mine.reducer));
    expect_ok(noria_step_begin(mine.reducer, 0));
    mine.give_all(0, 1, 1);
    expect_failure(noria_step_end(mine.reducer, nullptr, nullptr), NORIA_E_TIMEOUT,
                   "rank 1 is in its hook for bucket 1 after it was reduced");
    EXPECT_FALSE(contains(last_error(), "; rank 0")) << last_error();
    if (rank == 0) parent.meet();
  });
  crew.wire(0).meet();
  crew.wire(1).meet();
  crew.expect_success();
}

TEST(ReducerFaults, C34_A_rank_that_never_comes_to_the_end_is_named_by_the_time_out) {
  const noria_unique_id id = make_job_id();
  RankCrew crew(2, [&](int32_t rank, Wire& parent) {
    RankOfJob mine(id, rank, 2, model(), {.timeout_ms = 2'000});
    expect_ok(noria_reducer_seal(mine.reducer));
    expect_ok(noria_step_begin(mine.reducer, 0));
    if (rank == 0) {
      mine.give_all(0, 1, 1);
      expect_failure(noria_step_end(mine.reducer, nullptr, nullptr), NORIA_E_TIMEOUT, "rank 1");
      parent.meet();
      return;
    }
    parent.meet();  // after rank 0 gave up
    expect_failure(noria_step_end(mine.reducer, nullptr, nullptr), NORIA_E_TIMEOUT, "rank 1");
  });
  crew.wire(0).meet();
  crew.wire(1).meet();
  crew.expect_success();
}

// The warnings that a rank's library wrote to standard error.
std::string warnings_of(const std::function<void()>& body) {
  testing::internal::CaptureStderr();
  body();
  return testing::internal::GetCapturedStderr();
}

// Every rank but `victim`, which `stands` in the midst of step 0, comes to its end.
// Expect: all that can get the same text, in which `told` stands; and a warning was there before.
void expect_stall_is_told(int32_t size, int32_t victim, const std::vector<std::string>& told,
                          const std::function<void(RankOfJob&, Wire& parent)>& stands) {
  const noria_unique_id id = make_job_id();
  RankCrew crew(size, [&](int32_t rank, Wire& parent) {
    RankOfJob mine(id, rank, size, model(), {.timeout_ms = 1'500});
    expect_ok(noria_reducer_seal(mine.reducer));
    expect_ok(noria_step_begin(mine.reducer, 0));
    if (rank == victim) return stands(mine, parent);
    mine.give_all(0, 1, 1);
    parent.meet();  // all but the victim have given
    parent.meet();  // and the victim stands
    const std::string warned = warnings_of([&] {
      EXPECT_EQ(noria_step_end(mine.reducer, nullptr, nullptr), NORIA_E_TIMEOUT) << last_error();
    });
    for (const std::string& part : told) EXPECT_TRUE(contains(last_error(), part)) << last_error();
    EXPECT_TRUE(contains(last_error(), "the step made no progress for 1.5 s")) << last_error();
    // One line, half-way; of a rank whose neighbour was heard of first, perhaps none.
    if (!warned.empty()) {
      EXPECT_TRUE(contains(warned, "the step has made no progress for")) << warned;
      EXPECT_TRUE(contains(warned, "of 1.5 s, waiting for ")) << warned;
      EXPECT_TRUE(contains(warned, told.front())) << warned;
      EXPECT_EQ(std::count(warned.begin(), warned.end(), '\n'), 1) << warned;
    }
    parent.send(!warned.empty());
    parent.send(std::hash<std::string>()(last_error()));
    parent.meet();
  });
  const auto meet_others = [&] {
    for (int32_t rank = 0; rank < size; ++rank)
      if (rank != victim) crew.wire(rank).meet();
  };
  meet_others();
  if (told.front().find("did not say") != std::string::npos) {
    crew.wire(victim).meet();
    crew.wire(victim).meet();  // it has nothing more to do
    crew.kill(victim, SIGSTOP);
  }
  meet_others();
  bool is_warned = false;
  std::vector<size_t> texts;
  for (int32_t rank = 0; rank < size; ++rank) {
    if (rank == victim) continue;
    is_warned |= crew.wire(rank).recv<bool>();
    texts.push_back(crew.wire(rank).recv<size_t>());
  }
  EXPECT_TRUE(is_warned);
  for (const size_t text : texts) EXPECT_EQ(text, texts.front());
  crew.kill(victim, SIGCONT);
  for (int32_t rank = 0; rank < size; ++rank) crew.wire(rank).meet();
  crew.expect_success();
}

TEST(ReducerFaults, C34_A_tensor_that_is_never_given_is_named_with_its_rank_by_all) {
  for (const int32_t victim : {0, 2})
    expect_stall_is_told(
        3, victim,
        {"rank " + std::to_string(victim) + " has not given 't7', 't9' (2 of 52 tensors)"},
        [](RankOfJob& mine, Wire& parent) {
          for (uint32_t t = 0; t < mine.model.size(); ++t)
            if (t != 7 && t != 9) expect_ok(mine.give(t, 0));
          parent.meet();
          expect_failure(noria_step_end(mine.reducer, nullptr, nullptr), NORIA_E_TIMEOUT,
                         "has not given 't7', 't9'");
        });
}

TEST(ReducerFaults, C34_A_rank_that_gave_all_and_never_ends_its_step_is_named) {
  expect_stall_is_told(2, 1, {"rank 1 has not called noria_step_end()"},
                       [](RankOfJob& mine, Wire& parent) {
                         mine.give_all(0, 1, 1);
                         parent.meet();
                       });
}

// Nothing is under way from this rank. One that is stopped in the midst of a copy holds up its
// peers, who may free no memory that it would go on writing to.
void expect_sleeping_driver() {
  const auto sleeps = [] {
    noria_counter_info info{.struct_size = sizeof info};
    for (uint32_t index = 0; noria_observe_counter(index, &info) == NORIA_OK; ++index)
      if (std::string(info.name) == "sleeps") return info.value;
    ADD_FAILURE() << "no counter of that name";
    return uint64_t{0};
  };
  constexpr uint64_t kInARow = 3;  // it looks again after each
  const uint64_t before = sleeps();
  const Nanoseconds deadline = now_ns() + 20_s;
  while (sleeps() < before + kInARow && now_ns() < deadline) ::poll(nullptr, 0, 1);
  EXPECT_GE(sleeps(), before + kInARow);
}

TEST(ReducerFaults, C34_A_rank_that_is_stopped_is_named_as_such) {
  expect_stall_is_told(3, 1, {"rank 1 did not say what it waits for: is its process stopped?"},
                       [](RankOfJob&, Wire& parent) {
                         parent.meet();  // all others have given
                         expect_sleeping_driver();
                         parent.meet();  // the parent stops it
                         parent.meet();
                       });
}

TEST(ReducerFaults, C34_A_rank_that_is_in_no_collective_is_named) {
  const noria_unique_id id = make_job_id();
  RankCrew crew(2, [&](int32_t rank, Wire& parent) {
    RankOfJob mine(id, rank, 2, model(), {.timeout_ms = 1'500});
    if (rank == 0)
      expect_failure(noria_barrier(mine.comm, nullptr, nullptr), NORIA_E_TIMEOUT,
                     "rank 1 has no collective under way");
    parent.meet();
  });
  crew.wire(0).meet();
  crew.wire(1).meet();
  crew.expect_success();
}

TEST(ReducerFaults, C34_A_stopped_rank_0_is_named_by_the_others) {
  const noria_unique_id id = make_job_id();
  RankCrew crew(2, [&](int32_t rank, Wire& parent) {
    RankOfJob mine(id, rank, 2, model(), {.timeout_ms = 1'500});
    parent.meet();
    if (rank == 1) {
      parent.meet();  // after rank 0 was stopped
      expect_failure(noria_barrier(mine.comm, nullptr, nullptr), NORIA_E_TIMEOUT,
                     "rank 0 did not answer: is its process stopped?");
    }
    parent.meet();
  });
  crew.wire(0).meet();
  crew.wire(1).meet();
  crew.kill(0, SIGSTOP);
  crew.wire(1).meet();
  crew.wire(1).meet();
  crew.kill(0, SIGCONT);
  crew.wire(0).meet();
  crew.expect_success();
}

// Two ranks, each with step 0 open when `body` is called.
void run_in_open_step(const std::function<void(RankOfJob&)>& body) {
  const noria_unique_id id = make_job_id();
  RankCrew crew(2, [&](int32_t rank, Wire& parent) {
    RankOfJob mine(id, rank, 2, model(), {});
    expect_ok(noria_reducer_seal(mine.reducer));
    expect_ok(noria_step_begin(mine.reducer, 0));
    parent.meet();
    body(mine);
  });
  crew.wire(0).meet();
  crew.wire(1).meet();
  crew.expect_success();
}

TEST(ReducerFaults, A_reducer_destroyed_in_a_step_ends_the_step_of_the_others) {
  run_in_open_step([](RankOfJob& mine) {
    if (mine.rank == 1) return;
    expect_failure(noria_step_end(mine.reducer, nullptr, nullptr), NORIA_E_ABORTED,
                   "rank 1 destroyed its reducer in the midst of step 0");
  });
}

TEST(ReducerFaults, A_reducer_may_outlive_its_communicator) {
  for (const bool is_step_open : {false, true}) {
    const noria_unique_id id = make_job_id();
    RankCrew crew(2, [&](int32_t rank, Wire& parent) {
      RankOfJob mine(id, rank, 2, model(), {});
      expect_ok(noria_reducer_seal(mine.reducer));
      mine.run_good_step(0, 1, 1);
      if (is_step_open) expect_ok(noria_step_begin(mine.reducer, 0));
      // Rank 1 stays until all is seen: its end would be another cause.
      if (rank == 1) return parent.meet();
      noria_comm_destroy(mine.comm);
      mine.comm = nullptr;
      if (is_step_open) {
        mine.give_all(1, 1, 1);
        expect_failure(noria_step_end(mine.reducer, nullptr, nullptr), NORIA_E_ABORTED,
                       "the communicator was destroyed");
      }
      expect_failure(noria_step_begin(mine.reducer, 0), NORIA_E_ABORTED,
                     "the communicator was destroyed");
      // Expect: what the views show is still there.
      EXPECT_NE(mine.hash_of_results(), 0U);
      parent.meet();
    });
    crew.wire(0).meet();
    crew.wire(1).meet();
    crew.expect_success();
  }
}

TEST(ReducerFaults, An_abort_ends_a_step_from_another_thread) {
  run_in_open_step([](RankOfJob& mine) {
    std::thread other;
    if (mine.rank == 1)
      other = std::thread([&] { expect_ok(noria_comm_abort(mine.comm, "enough")); });
    mine.give_all(0, 1, 1);
    const noria_status ended = noria_step_end(mine.reducer, nullptr, nullptr);
    if (other.joinable()) other.join();
    // The abort may come when the step is over on this rank: then the next one cannot begin.
    expect_failure(ended == NORIA_OK ? noria_reducer_reset(mine.reducer) : ended, NORIA_E_ABORTED,
                   "enough");
  });
}

}  // namespace
}  // namespace noria::test
