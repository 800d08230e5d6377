// Communicators through the C API when something goes wrong: every rank ends, in time, with a text
// that names the cause.
#include <gtest/gtest.h>
#include <noria/observe.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <thread>

#include "base/clock.hpp"
#include "tests/support/job.hpp"

namespace noria::test {
namespace {

constexpr uint64_t kCount = 2'000'003;  // several segments

noria_status reduce(noria_comm* comm, std::vector<float>* values) {
  return noria_all_reduce(comm, values->data(), values->data(), values->size(), NORIA_FLOAT32,
                          NORIA_MAX, nullptr, nullptr);
}

// Reduces until it fails or a bound is reached; the first failure.
noria_status reduce_until_failure(noria_comm* comm) {
  std::vector<float> values = input_of(0, kCount);
  const Nanoseconds deadline = now_ns() + 25_s;
  while (now_ns() < deadline)
    if (const noria_status status = reduce(comm, &values); status != NORIA_OK) return status;
  return NORIA_OK;
}

// Until this rank has heard of one, without another call. Bounded.
void await_failure(const JobRank& self) {
  const Nanoseconds deadline = now_ns() + 20_s;
  while (noria_comm_status(self.comm) == NORIA_OK && now_ns() < deadline) ::poll(nullptr, 0, 1);
}

void expect_text(const std::vector<std::string>& parts) {
  const std::string text = last_error();
  for (const std::string& part : parts) EXPECT_TRUE(contains(text, part)) << part << ": " << text;
}

// ---- deaths -------------------------------------------------------------------------------------

enum class Phase { idle, reducing, in_barrier };

// Kills `victim` once all have come to the phase.  Expect: all others name it within ten seconds.
void expect_death_is_named(int32_t size, int32_t victim, Phase phase) {
  Job job(size, [=](JobRank& self) {
    self.parent.send(uint8_t{1});
    noria_status status = NORIA_OK;
    if (phase == Phase::reducing) {
      status = reduce_until_failure(self.comm);
    } else if (phase == Phase::in_barrier) {
      if (self.rank == victim) self.parent.recv<uint8_t>();  // never comes to the barrier
      status = noria_barrier(self.comm, nullptr, nullptr);
    } else {
      self.parent.recv<uint8_t>();  // told after the kill
      status = noria_barrier(self.comm, nullptr, nullptr);
    }
    EXPECT_EQ(status, NORIA_E_PEER) << last_error();
    expect_text({"rank " + std::to_string(victim)});
    // Expect: it stays so.
    EXPECT_EQ(noria_barrier(self.comm, nullptr, nullptr), NORIA_E_PEER);
  });
  for (int32_t rank = 0; rank < size; ++rank) job.crew().wire(rank).recv<uint8_t>();
  if (phase == Phase::reducing) ::poll(nullptr, 0, 30);  // well into it
  job.crew().kill(victim, SIGKILL);
  const Nanoseconds killed = now_ns();
  if (phase == Phase::idle)
    for (int32_t rank = 0; rank < size; ++rank)
      if (rank != victim) job.crew().wire(rank).send(uint8_t{1});
  job.crew().expect_success({victim});
  EXPECT_LT(now_ns() - killed, 10_s);  // the product's promise, not a measure of speed
}

TEST(DeathTest, In_the_midst_of_reductions_is_named) {
  for (const int32_t victim : {0, 1}) expect_death_is_named(2, victim, Phase::reducing);
  for (const int32_t victim : {0, 1, 3}) expect_death_is_named(4, victim, Phase::reducing);
}
TEST(DeathTest, While_idle_is_named_by_the_next_call) {
  for (const int32_t victim : {0, 2}) expect_death_is_named(3, victim, Phase::idle);
}
TEST(DeathTest, While_the_others_wait_in_a_barrier_is_named) {
  for (const int32_t victim : {0, 2}) expect_death_is_named(3, victim, Phase::in_barrier);
}

TEST(DeathTest, Is_heard_of_by_who_only_asks) {
  for (const int32_t victim : {0, 2}) {
    Job job(3, [=](JobRank& self) {
      EXPECT_NORIA(noria_comm_status(self.comm));
      ASSERT_NORIA(noria_barrier(self.comm, nullptr, nullptr));
      self.parent.send(uint8_t{1});
      // Computes, and makes no other call.
      await_failure(self);
      EXPECT_EQ(noria_comm_status(self.comm), NORIA_E_PEER);
      expect_text({"rank " + std::to_string(victim) + " died"});
      // Expect: the next call says the same.
      EXPECT_EQ(noria_barrier(self.comm, nullptr, nullptr), NORIA_E_PEER);
      expect_text({"rank " + std::to_string(victim) + " died"});
    });
    for (int32_t rank = 0; rank < 3; ++rank) job.crew().wire(rank).recv<uint8_t>();
    job.crew().kill(victim, SIGKILL);
    job.crew().expect_success({victim});
  }
}

TEST(LeaveTest, A_rank_that_left_fails_no_collective_that_can_end_without_it) {
  Job job(4, [](JobRank& self) {
    std::vector<float> values = input_of(0, 1000);
    if (self.rank != 0) std::fill(values.begin(), values.end(), -1.0f);
    // Rank 2 comes when rank 0 has done its part and is gone: 1 waits for 2, and 3 does.
    if (self.rank == 2) self.parent.recv<uint8_t>();
    EXPECT_NORIA(noria_broadcast(self.comm, values.data(), values.data(), values.size(),
                                 NORIA_FLOAT32, 0, nullptr, nullptr));
    EXPECT_EQ(values, input_of(0, 1000));
    if (self.rank == 0) return;
    // Expect: the next one needs it, and says so.
    EXPECT_EQ(noria_barrier(self.comm, nullptr, nullptr), NORIA_E_PEER) << last_error();
    if (self.rank == 1) expect_text({"rank 0"});
  });
  EXPECT_EQ(job.crew().wait(0).exit_code, 0);
  job.crew().wire(2).send(uint8_t{1});
  job.crew().expect_success({0});
}

TEST(StartTest, C45_Connections_that_carry_nothing_are_told_when_the_communicator_is_made) {
  for (const char* fault :
       {"qp=*: after msgs=1 do lose for=60000ms", "qp=*: after msgs=1 do fail status=12"}) {
    const noria_unique_id id = make_id();
    RankCrew crew(3, [&](int32_t rank, Wire&) {
      if (rank == 1) ::setenv("NORIA_SOFT_FAULTS", fault, 1);
      const noria_comm_config config = config_of(id, rank, 3, {.start_timeout_ms = 3'000});
      noria_comm* comm = nullptr;
      const Nanoseconds before = now_ns();
      EXPECT_LT(noria_comm_create(&config, &comm), 0);
      EXPECT_LT(now_ns() - before, 20_s);  // the product's promise: not the collectives' time-out
      expect_text({"the ranks met, but their first exchange over the devices failed", "rank "});
    });
    crew.expect_success();
  }
}

// What rank 1 does as soon as its communicator is made.
// Expect: the others' are made as well, and their next call tells `code` and `text`.
void expect_start_ends_before(const std::function<void(JobRank&)>& act, noria_status code,
                              const std::string& text, const std::vector<int32_t>& victims = {}) {
  for (int round = 0; round < 20; ++round) {
    Job job(3, [&](JobRank& self) {  // which asserts that its communicator is made
      if (self.rank == 1) act(self);
      EXPECT_EQ(noria_barrier(self.comm, nullptr, nullptr), code) << last_error();
      expect_text({text});
    });
    job.crew().expect_success(victims);
  }
}

TEST(StartTest, An_abort_right_after_the_start_is_told_by_the_next_call) {
  expect_start_ends_before(
      [](JobRank& self) { EXPECT_NORIA(noria_comm_abort(self.comm, "enough")); }, NORIA_E_ABORTED,
      "rank 1: noria_comm_abort(): enough");
}

TEST(StartTest, A_mismatch_right_after_the_start_is_told_by_the_call_itself) {
  expect_start_ends_before(
      [](JobRank& self) {
        float value = 1;
        EXPECT_EQ(noria_broadcast(self.comm, &value, &value, 1, NORIA_FLOAT32, 1, nullptr, nullptr),
                  NORIA_E_ORDER)
            << last_error();
      },
      NORIA_E_ORDER, "collective 1 differs: rank ");
}

TEST(StartTest, A_death_right_after_the_start_is_told_by_the_next_call) {
  expect_start_ends_before([](JobRank&) { ::raise(SIGKILL); }, NORIA_E_PEER, "rank 1 died", {1});
}

// What a process has open that could outlive it: sockets by their inode, files by their path.
struct Holdings {
  std::set<std::string> inodes;
  std::set<std::filesystem::path> files;
};

void add_holdings_of(pid_t pid, Holdings* holdings) {
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    std::error_code gone;
    const std::string target = std::filesystem::read_symlink(entry.path(), gone).string();
    if (target.starts_with("socket:["))
      holdings->inodes.insert(target.substr(8, target.size() - 9));
    else if (target.starts_with("/dev/shm") || target.starts_with("/tmp"))
      holdings->files.insert(target);
  }
}

std::set<std::string> unix_socket_inodes() {
  std::set<std::string> inodes;
  std::ifstream table("/proc/net/unix");
  std::string line;
  std::getline(table, line);  // the heads of the columns
  while (std::getline(table, line)) {
    std::istringstream fields(line);
    std::string field;
    for (int column = 0; column < 7; ++column) fields >> field;
    inodes.insert(field);
  }
  return inodes;
}

TEST(DeathTest, Of_all_ranks_leaves_nothing_behind) {
  Holdings holdings;
  {
    Job job(3, [](JobRank& self) {
      self.parent.send(uint8_t{1});
      reduce_until_failure(self.comm);
    });
    for (int32_t rank = 0; rank < 3; ++rank) job.crew().wire(rank).recv<uint8_t>();
    for (int32_t rank = 0; rank < 3; ++rank) add_holdings_of(job.crew().pid(rank), &holdings);
    for (int32_t rank = 0; rank < 3; ++rank) job.crew().kill(rank, SIGKILL);
    for (int32_t rank = 0; rank < 3; ++rank) job.crew().wait(rank);
  }
  EXPECT_FALSE(holdings.inodes.empty());
  const std::set<std::string> left = unix_socket_inodes();
  for (const std::string& inode : holdings.inodes) EXPECT_EQ(left.count(inode), 0u) << inode;
  for (const auto& file : holdings.files) EXPECT_FALSE(std::filesystem::exists(file)) << file;
}

TEST(StopTest, A_rank_that_was_stopped_in_the_midst_goes_on_and_results_are_right) {
  for (const int32_t stopped : {0, 1}) {
    Job job(3, [](JobRank& self) {
      self.parent.send(uint8_t{1});
      for (uint32_t round = 0; round < 60; ++round) {
        std::vector<float> values = input_of(self.rank, 200'001, round);
        ASSERT_NORIA(noria_all_reduce(self.comm, values.data(), values.data(), values.size(),
                                      NORIA_FLOAT32, NORIA_SUM, nullptr, nullptr));
        ASSERT_EQ(wrong_values(values, self.size, round), 0u) << round;
      }
    });
    for (int32_t rank = 0; rank < 3; ++rank) job.crew().wire(rank).recv<uint8_t>();
    ::poll(nullptr, 0, 10);
    job.crew().kill(stopped, SIGSTOP);
    ::poll(nullptr, 0, 3000);
    job.crew().kill(stopped, SIGCONT);
    job.crew().expect_success();
  }
}

// ---- ranks that disagree ------------------------------------------------------------------------

// What rank 1 calls, and what the others do: long ways, both in a line, and one of each.
constexpr std::pair<uint64_t, uint64_t> kUnlikeCounts[] = {
    {999, 1000}, {1, 2}, {2, 1000}, {1000, 2}, {0, 1}};

TEST(DisagreementTest, Another_count_fails_on_all_ranks) {
  for (const auto& [one, others] : kUnlikeCounts)
    run_job(3, [one = one, others = others](JobRank& self) {
      std::vector<float> values = input_of(self.rank, 1000);
      const uint64_t count = self.rank == 1 ? one : others;
      EXPECT_EQ(noria_all_reduce(self.comm, values.data(), values.data(), count, NORIA_FLOAT32,
                                 NORIA_SUM, nullptr, nullptr),
                NORIA_E_MISMATCH)
          << last_error();
      expect_text({"rank 1 called all_reduce of " + std::to_string(one) + " float32, sum",
                   "called all_reduce of " + std::to_string(others) + " float32, sum"});
    });
}

TEST(DisagreementTest, Another_operation_fails_on_all_ranks) {
  for (const uint64_t count : {uint64_t{1}, uint64_t{1000}})
    run_job(2, [count](JobRank& self) {
      std::vector<float> values = input_of(self.rank, count);
      EXPECT_EQ(noria_all_reduce(self.comm, values.data(), values.data(), count, NORIA_FLOAT32,
                                 self.rank == 0 ? NORIA_SUM : NORIA_MAX, nullptr, nullptr),
                NORIA_E_MISMATCH)
          << last_error();
    });
}

TEST(DisagreementTest, Another_order_of_calls_fails_on_all_ranks) {
  for (const uint64_t count : {uint64_t{1}, uint64_t{1000}})
    run_job(2, [count](JobRank& self) {
      std::vector<float> values = input_of(self.rank, count);
      noria_status status = NORIA_OK;
      if (self.rank == 0)
        status = reduce(self.comm, &values);
      else
        status = noria_barrier(self.comm, nullptr, nullptr);
      EXPECT_EQ(status, NORIA_E_ORDER) << last_error();
    });
}

TEST(DisagreementTest, A_rank_that_does_not_come_is_named_at_the_time_out) {
  Job job(3,
          [](JobRank& self) {
            if (self.rank == 2) {
              self.parent.recv<uint8_t>();
              await_failure(self);
              EXPECT_EQ(noria_barrier(self.comm, nullptr, nullptr), NORIA_E_TIMEOUT);
              return;
            }
            std::vector<float> values = input_of(self.rank, kCount);
            EXPECT_EQ(reduce(self.comm, &values), NORIA_E_TIMEOUT) << last_error();
            expect_text({"no progress for 0.3 s", "rank"});
            self.parent.send(uint8_t{1});
          },
          {.collective_timeout_ms = 300});
  for (const int32_t rank : {0, 1}) job.crew().wire(rank).recv<uint8_t>();
  job.crew().wire(2).send(uint8_t{1});
  job.crew().expect_success();
}

// A line says whose it is, however many ranks it has come through.
TEST(DisagreementTest, A_rank_that_does_not_come_to_a_barrier_is_named_by_all) {
  Job job(3,
          [](JobRank& self) {
            if (self.rank == 2) {
              self.parent.recv<uint8_t>();
              await_failure(self);  // else it finds the others' lines there, and is through
            }
            EXPECT_EQ(noria_barrier(self.comm, nullptr, nullptr), NORIA_E_TIMEOUT) << last_error();
            expect_text({"a barrier made no progress for 0.3 s", "rank 2"});
            if (self.rank != 2) self.parent.send(uint8_t{1});
          },
          {.collective_timeout_ms = 300});
  for (const int32_t rank : {0, 1}) job.crew().wire(rank).recv<uint8_t>();
  job.crew().wire(2).send(uint8_t{1});
  job.crew().expect_success();
}

// ---- aborts -------------------------------------------------------------------------------------

TEST(AbortTest, From_another_thread_ends_waits_on_all_ranks) {
  run_job(3, [](JobRank& self) {
    std::vector<float> values = input_of(self.rank, kCount);
    noria_work* work = nullptr;
    std::thread aborting;
    if (self.rank == 1) {
      // Rank 1 never calls the reduction that the others wait for.
      ::poll(nullptr, 0, 20);
      EXPECT_NORIA(noria_comm_abort(self.comm, "the loss is not finite"));
      EXPECT_EQ(reduce(self.comm, &values), NORIA_E_ABORTED);
    } else {
      ASSERT_NORIA(noria_all_reduce(self.comm, values.data(), values.data(), values.size(),
                                    NORIA_FLOAT32, NORIA_SUM, nullptr, &work));
      EXPECT_EQ(noria_work_wait(work, 0), NORIA_E_ABORTED);
      EXPECT_EQ(noria_work_test(work), NORIA_E_ABORTED);
      noria_work_release(work);
    }
    expect_text({"rank 1", "the loss is not finite"});
    // Expect: who asks is told the same.
    EXPECT_EQ(noria_comm_status(self.comm), NORIA_E_ABORTED);
    expect_text({"rank 1", "the loss is not finite"});
  });
}

TEST(AbortTest, Of_its_own_communicator_ends_a_blocking_call) {
  Job job(2, [](JobRank& self) {
    if (self.rank == 1) {  // does not come until rank 0 has given up
      self.parent.recv<uint8_t>();
      EXPECT_EQ(noria_barrier(self.comm, nullptr, nullptr), NORIA_E_ABORTED);
      return;
    }
    std::thread aborting([&] {
      ::poll(nullptr, 0, 20);
      EXPECT_NORIA(noria_comm_abort(self.comm, nullptr));
    });
    std::vector<float> values = input_of(self.rank, kCount);
    EXPECT_EQ(reduce(self.comm, &values), NORIA_E_ABORTED) << last_error();
    aborting.join();
    self.parent.send(uint8_t{1});
  });
  job.crew().wire(0).recv<uint8_t>();
  job.crew().wire(1).send(uint8_t{1});
  job.crew().expect_success();
}

TEST(AbortTest, The_end_of_a_communicator_does_not_wait_for_its_works) {
  Job job(2, [](JobRank& self) {
    if (self.rank == 1) {
      self.parent.recv<uint8_t>();
      return;
    }
    std::vector<float> values = input_of(self.rank, kCount);
    noria_work* work = nullptr;
    ASSERT_NORIA(noria_all_reduce(self.comm, values.data(), values.data(), values.size(),
                                  NORIA_FLOAT32, NORIA_SUM, nullptr, &work));
    noria_work_release(work);
    noria_comm_destroy(self.comm);
    self.comm = nullptr;
    self.parent.send(uint8_t{1});
  });
  job.crew().wire(0).recv<uint8_t>();
  job.crew().wire(1).send(uint8_t{1});
  job.crew().expect_success();
}

TEST(AbortTest, A_work_may_outlive_its_communicator) {
  Job job(2, [](JobRank& self) {
    if (self.rank == 1) {
      self.parent.recv<uint8_t>();
      return;
    }
    std::vector<float> values = input_of(self.rank, kCount);
    noria_work* works[2] = {};
    for (noria_work*& work : works)
      ASSERT_NORIA(noria_all_reduce(self.comm, values.data(), values.data(), values.size(),
                                    NORIA_FLOAT32, NORIA_SUM, nullptr, &work));
    noria_comm_destroy(self.comm);
    self.comm = nullptr;
    EXPECT_EQ(noria_work_wait(works[0], 0), NORIA_E_ABORTED);
    EXPECT_EQ(noria_work_test(works[1]), NORIA_E_ABORTED);
    expect_text({"the communicator was destroyed"});
    for (noria_work* work : works) noria_work_release(work);
    self.parent.send(uint8_t{1});
  });
  job.crew().wire(0).recv<uint8_t>();
  job.crew().wire(1).send(uint8_t{1});
  job.crew().expect_success();
}

// ---- starting -----------------------------------------------------------------------------------

TEST(StartTest, Missing_ranks_are_named_on_all_that_came) {
  const noria_unique_id id = make_id();
  run_ranks(4, [&](int32_t rank, Wire&) {
    if (rank == 1 || rank == 3) return;
    noria_comm* comm = nullptr;
    const noria_comm_config config = config_of(id, rank, 4, {.start_timeout_ms = 400});
    EXPECT_EQ(noria_comm_create(&config, &comm), NORIA_E_MISSING);
    EXPECT_EQ(comm, nullptr);
    // Whoever's deadline passes first, rank 0's word is the same; without it rank 0 is missing.
    expect_text({"ranks 1, 3 of 4 did not join within"});
  });
}

TEST(StartTest, A_bad_variable_on_one_rank_fails_on_all_with_its_name) {
  const noria_unique_id id = make_id();
  run_ranks(3, [&](int32_t rank, Wire&) {
    if (rank == 2) setenv("NORIA_RING_FETCH", "sideways", 1);
    noria_comm* comm = nullptr;
    const noria_comm_config config = config_of(id, rank, 3);
    EXPECT_EQ(noria_comm_create(&config, &comm), NORIA_E_ARG);
    expect_text({"rank 2", "NORIA_RING_FETCH", "sideways", "auto|read|message"});
  });
}

TEST(StartTest, A_rank_without_a_device_fails_on_all_with_its_name) {
  const noria_unique_id id = make_id();
  run_ranks(3, [&](int32_t rank, Wire&) {
    if (rank == 1) setenv("NORIA_IBVERBS", "/nowhere/libibverbs.so", 1);
    noria_comm* comm = nullptr;
    const noria_comm_config config = config_of(id, rank, 3);
    EXPECT_EQ(noria_comm_create(&config, &comm), NORIA_E_DEVICE);
    expect_text({"rank 1", "/nowhere/libibverbs.so"});
  });
}

TEST(StartTest, A_rank_killed_while_others_connect_is_named) {
  const noria_unique_id id = make_id();
  RankCrew crew(3, [&](int32_t rank, Wire& parent) {
    parent.send(uint8_t{1});
    if (rank == 2) {
      parent.recv<uint8_t>();
      return;
    }
    noria_comm* comm = nullptr;
    const noria_comm_config config = config_of(id, rank, 3, {.start_timeout_ms = 20000});
    const noria_status status = noria_comm_create(&config, &comm);
    if (rank == 1) return;
    EXPECT_EQ(status, NORIA_E_PEER) << last_error();
    expect_text({"rank 1"});
  });
  for (int32_t rank = 0; rank < 3; ++rank) crew.wire(rank).recv<uint8_t>();
  ::poll(nullptr, 0, 200);
  crew.kill(1, SIGKILL);
  crew.wire(2).send(uint8_t{1});
  crew.expect_success({1});
}

// ---- arguments ----------------------------------------------------------------------------------

noria_comm* lone_comm() {
  noria_comm_config config = NORIA_COMM_CONFIG_INIT;
  config.rank = 0;
  config.size = 1;
  noria_comm* comm = nullptr;
  EXPECT_NORIA(noria_comm_create(&config, &comm));
  return comm;
}

TEST(ArgumentTest, Each_bad_argument_is_named) {
  noria_comm* comm = lone_comm();
  float in[4] = {}, out[4] = {};
  const auto refused = [&](noria_status got, noria_status wanted, const char* part) {
    EXPECT_EQ(got, wanted) << part;
    expect_text({part});
  };
  refused(noria_all_reduce(nullptr, in, out, 4, NORIA_FLOAT32, NORIA_SUM, nullptr, nullptr),
          NORIA_E_ARG, "comm is NULL");
  refused(noria_all_reduce(comm, nullptr, out, 4, NORIA_FLOAT32, NORIA_SUM, nullptr, nullptr),
          NORIA_E_ARG, "in is NULL");
  refused(noria_all_reduce(comm, in, nullptr, 4, NORIA_FLOAT32, NORIA_SUM, nullptr, nullptr),
          NORIA_E_ARG, "out is NULL");
  refused(noria_all_reduce(comm, in, out, 4, 42, NORIA_SUM, nullptr, nullptr), NORIA_E_ARG,
          "dtype 42");
  refused(noria_all_reduce(comm, in, out, 4, NORIA_FLOAT32, 5, nullptr, nullptr), NORIA_E_ARG,
          "op 5");
  refused(noria_all_reduce(comm, in, out, 4, NORIA_FLOAT32, -1, nullptr, nullptr), NORIA_E_ARG,
          "op -1");
  refused(noria_all_reduce(comm, in, out, 4, NORIA_INT8, NORIA_SUM, nullptr, nullptr),
          NORIA_E_UNSUPPORTED, "int8");
  refused(noria_all_reduce(comm, in, out, 4, NORIA_INT32, NORIA_AVG, nullptr, nullptr), NORIA_E_ARG,
          "averages of int32");
  refused(noria_all_reduce(comm, in, in + 1, 3, NORIA_FLOAT32, NORIA_SUM, nullptr, nullptr),
          NORIA_E_ARG, "overlap");
  refused(
      noria_all_reduce(comm, in, out, UINT64_MAX / 2, NORIA_FLOAT64, NORIA_SUM, nullptr, nullptr),
      NORIA_E_ARG, "count");
  refused(noria_broadcast(comm, in, out, 4, NORIA_FLOAT32, 1, nullptr, nullptr), NORIA_E_ARG,
          "root 1");
  const uint64_t counts[1] = {4}, too_many[1] = {UINT64_MAX / 4};
  refused(noria_reduce_scatter(nullptr, in, out, 1, NORIA_FLOAT32, NORIA_SUM, nullptr, nullptr),
          NORIA_E_ARG, "comm is NULL");
  refused(noria_reduce_scatter(comm, in, nullptr, 1, NORIA_FLOAT32, NORIA_SUM, nullptr, nullptr),
          NORIA_E_ARG, "noria_reduce_scatter: out is NULL");
  refused(noria_reduce_scatter(comm, in, out, 1, NORIA_UINT8, NORIA_SUM, nullptr, nullptr),
          NORIA_E_UNSUPPORTED, "uint8");
  refused(noria_reduce_scatter(comm, in, out, 1, 42, NORIA_SUM, nullptr, nullptr), NORIA_E_ARG,
          "dtype 42");
  refused(noria_reduce_scatter(comm, in, in + 1, 3, NORIA_FLOAT32, NORIA_SUM, nullptr, nullptr),
          NORIA_E_ARG, "overlap");
  refused(
      noria_reduce_scatter_v(comm, in, out, nullptr, NORIA_FLOAT32, NORIA_SUM, nullptr, nullptr),
      NORIA_E_ARG, "counts is NULL");
  refused(
      noria_reduce_scatter_v(nullptr, in, out, counts, NORIA_FLOAT32, NORIA_SUM, nullptr, nullptr),
      NORIA_E_ARG, "comm is NULL");
  refused(
      noria_reduce_scatter_v(comm, in, out, too_many, NORIA_FLOAT32, NORIA_SUM, nullptr, nullptr),
      NORIA_E_ARG, "of rank 0 is more than memory can hold");
  refused(noria_all_gather(nullptr, in, out, 1, NORIA_FLOAT32, nullptr, nullptr), NORIA_E_ARG,
          "comm is NULL");
  refused(noria_all_gather(comm, nullptr, out, 1, NORIA_INT8, nullptr, nullptr), NORIA_E_ARG,
          "noria_all_gather: in is NULL");
  refused(noria_all_gather_v(nullptr, in, out, counts, NORIA_FLOAT32, nullptr, nullptr),
          NORIA_E_ARG, "comm is NULL");
  refused(noria_all_gather_v(comm, in, out, too_many, NORIA_FLOAT32, nullptr, nullptr), NORIA_E_ARG,
          "of rank 0 is more than memory can hold");
  // One rank's block is everything.
  in[3] = 7;
  EXPECT_NORIA(
      noria_reduce_scatter_v(comm, in, out, counts, NORIA_FLOAT32, NORIA_AVG, nullptr, nullptr));
  EXPECT_EQ(out[3], 7);
  EXPECT_NORIA(noria_all_gather(comm, out, out, 4, NORIA_FLOAT32, nullptr, nullptr));
  noria_stream stream{sizeof(noria_stream), NORIA_STREAM_CUDA, nullptr, 0};
  refused(noria_barrier(comm, &stream, nullptr), NORIA_E_UNSUPPORTED, "NORIA_STREAM_CUDA");
  stream.kind = 9;
  refused(noria_barrier(comm, &stream, nullptr), NORIA_E_ARG, "kind is 9");
  refused(noria_work_wait(nullptr, 0), NORIA_E_ARG, "work is NULL");
  refused(noria_work_test(nullptr), NORIA_E_ARG, "work is NULL");
  refused(noria_comm_abort(nullptr, "x"), NORIA_E_ARG, "comm is NULL");
  refused(noria_comm_status(nullptr), NORIA_E_ARG, "comm is NULL");
  EXPECT_NORIA(noria_comm_status(comm));
  // Nothing to move needs no memory.
  EXPECT_NORIA(
      noria_all_reduce(comm, nullptr, nullptr, 0, NORIA_FLOAT32, NORIA_SUM, nullptr, nullptr));
  noria_comm* child = comm;
  refused(noria_comm_split(nullptr, 0, 0, &child), NORIA_E_ARG, "comm is NULL");
  refused(noria_comm_split(comm, 0, 0, nullptr), NORIA_E_ARG, "child is NULL");
  refused(noria_comm_split(comm, -2, 0, &child), NORIA_E_ARG, "rank 0: noria_comm_split: color -2");
  // A rank alone is split too.
  EXPECT_NORIA(noria_comm_split(comm, NORIA_SPLIT_NOCOLOR, 0, &child));
  EXPECT_EQ(child, nullptr);
  EXPECT_NORIA(noria_comm_split(comm, 3, 1, &child));
  EXPECT_NORIA(noria_all_reduce(child, in, out, 4, NORIA_FLOAT32, NORIA_SUM, nullptr, nullptr));
  noria_comm_destroy(child);
  noria_work_release(nullptr);
  noria_comm_destroy(nullptr);
  noria_comm_destroy(comm);
}

TEST(ArgumentTest, A_configuration_is_checked_before_anybody_is_waited_for) {
  noria_comm* comm = nullptr;
  noria_comm_config config = NORIA_COMM_CONFIG_INIT;
  EXPECT_EQ(noria_comm_create(nullptr, &comm), NORIA_E_ARG);
  EXPECT_EQ(noria_comm_create(&config, nullptr), NORIA_E_ARG);
  // What was never set may be any number; nothing is read by it.
  for (const uint32_t size : {0U, 7U, 64U * 1024 + 1, UINT32_MAX}) {
    config.struct_size = size;
    EXPECT_EQ(noria_comm_create(&config, &comm), NORIA_E_ARG);
    expect_text({"noria_comm_config.struct_size is " + std::to_string(size)});
  }
  noria_comm_info info{};
  info.struct_size = UINT32_MAX;
  noria_comm* lone = lone_comm();
  EXPECT_EQ(noria_observe_comm(lone, &info), NORIA_E_ARG);
  noria_comm_destroy(lone);
  config = NORIA_COMM_CONFIG_INIT;
  EXPECT_EQ(noria_comm_create(&config, &comm), NORIA_E_ARG);
  expect_text({"torchrun", "NORIA_ROOT"});
  const noria_unique_id no_id{};
  config = config_of(no_id, 0, 2);
  EXPECT_EQ(noria_comm_create(&config, &comm), NORIA_E_ARG);
  expect_text({"noria_get_unique_id"});
  EXPECT_EQ(comm, nullptr);
}

TEST(ArgumentTest, A_newer_callers_struct_is_taken_if_it_asks_for_nothing_new) {
  struct Newer {
    noria_comm_config config = NORIA_COMM_CONFIG_INIT;
    uint64_t of_the_future = 0;
  } newer;
  newer.config.struct_size = sizeof newer;
  newer.config.rank = 0;
  newer.config.size = 1;
  noria_comm* comm = nullptr;
  EXPECT_NORIA(noria_comm_create(&newer.config, &comm));
  noria_comm_destroy(comm);
  newer.of_the_future = 1;
  comm = nullptr;
  EXPECT_EQ(noria_comm_create(&newer.config, &comm), NORIA_E_UNSUPPORTED);
  expect_text({"newer noria"});
}

TEST(ArgumentTest, Errors_belong_to_their_thread_and_are_cut_to_fit) {
  EXPECT_EQ(noria_work_test(nullptr), NORIA_E_ARG);
  const std::string whole = last_error();
  EXPECT_FALSE(whole.empty());
  char text[8];
  EXPECT_EQ(noria_last_error(text, sizeof text), whole.size());
  EXPECT_EQ(std::string(text), whole.substr(0, 7));
  std::thread([] { EXPECT_EQ(last_error(), ""); }).join();
}

TEST(ArgumentTest, Parameters_can_be_looked_at_until_there_is_no_more) {
  noria_param_info info{};
  info.struct_size = sizeof info;
  uint32_t index = 0;
  std::set<std::string> names;
  while (noria_observe_param(index, &info) == NORIA_OK) names.insert(info.name), ++index;
  EXPECT_EQ(names.size(), index);
  EXPECT_EQ(names.count("NORIA_TIMEOUT_MS"), 1u);
  expect_text({"past the last"});
  // A caller with an older, shorter struct.  Expect: not a byte past it.
  info.struct_size = offsetof(noria_param_info, value);
  info.value[0] = 'x';
  EXPECT_NORIA(noria_observe_param(0, &info));
  EXPECT_EQ(info.value[0], 'x');
}

TEST(ArgumentTest, Counters_can_be_looked_at_until_there_is_no_more) {
  noria_counter_info info{};
  info.struct_size = sizeof info;
  uint32_t index = 0;
  std::set<std::string> names;
  while (noria_observe_counter(index, &info) == NORIA_OK) names.insert(info.name), ++index;
  EXPECT_EQ(names.size(), index);
  EXPECT_EQ(names.count("credits_missed"), 1u);
  expect_text({"past the last"});
  EXPECT_EQ(noria_observe_counter(0, nullptr), NORIA_E_ARG);
}

}  // namespace
}  // namespace noria::test
