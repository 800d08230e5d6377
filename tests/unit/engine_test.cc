#include "bucketing/engine.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "base/log.hpp"
#include "tests/support/fake_ring.hpp"
#include "tests/support/no_threads.hpp"

namespace noria::bucketing {
namespace {

using test::fake_ring;
using test::FakeRing;
using test::make_fake_engine;

constexpr Nanoseconds kPatience = 20_s;
constexpr int64_t kPlenty = 1'000'000'000;

bool eventually(const std::function<bool()>& is_true) {
  const Nanoseconds deadline = now_ns() + kPatience;
  while (!is_true())
    if (now_ns() > deadline) return false;
  return true;
}

bool is_done_by_itself(const Collective& collective) {
  return eventually([&] {
    std::this_thread::yield();
    return collective.is_done();
  });
}

// A collective whose segments become ready one by one.
struct Step {
  explicit Step(size_t segments) : pending(segments) {
    for (auto& count : pending) count.store(1, std::memory_order_relaxed);
    collective.segments.resize(segments);
    collective.pending = pending.data();
  }
  void make_ready(Engine& engine, size_t segment) {
    pending[segment].fetch_sub(1, std::memory_order_release);
    engine.wake();
  }

  std::vector<std::atomic<uint32_t>> pending;
  Collective collective;
};

TEST(EngineTest, A_blocking_call_is_driven_by_its_caller_and_wakes_nobody) {
  auto engine = make_fake_engine(kPatience);
  fake_ring().grant(kPlenty);
  for (int i = 0; i < 100; ++i) {
    Collective collective;
    engine->submit(collective, false);
    ASSERT_TRUE(engine->wait(collective, now_ns() + kPatience));
    EXPECT_EQ(collective.failure.code, NORIA_OK);
  }
  EXPECT_EQ(fake_ring().who_drove(), std::set{std::this_thread::get_id()});
}

TEST(EngineTest, A_call_of_a_line_is_driven_by_its_caller_where_nothing_else_is_under_way) {
  auto engine = make_fake_engine(kPatience);
  fake_ring().grant(kPlenty);
  float value = 1;
  const Part part{.in = reinterpret_cast<std::byte*>(&value),
                  .out = reinterpret_cast<std::byte*>(&value),
                  .count = 1};
  for (int i = 0; i < 10; ++i) {
    EXPECT_TRUE(engine->try_run(Kind::all_reduce, &part).value());
    EXPECT_TRUE(engine->try_run(Kind::barrier, nullptr).value());
  }
  EXPECT_EQ(fake_ring().who_drove(), std::set{std::this_thread::get_id()});

  // Something is queued.  Expect: not begun, and it runs behind that when it is submitted.
  Collective queued, behind;
  engine->submit(queued, false);
  EXPECT_FALSE(engine->try_run(Kind::all_reduce, &part).value());
  engine->submit(behind, false);
  ASSERT_TRUE(engine->wait(behind, now_ns() + kPatience));
  EXPECT_TRUE(queued.is_done());
  EXPECT_TRUE(engine->try_run(Kind::all_reduce, &part).value());
}

TEST(EngineTest, A_call_of_a_line_fails_as_any_other) {
  auto engine = make_fake_engine(20_ms);
  // No neighbour comes.  Expect: the bound holds, and whoever comes next is told the same.
  const auto outcome = engine->try_run(Kind::barrier, nullptr);
  ASSERT_FALSE(outcome);
  EXPECT_EQ(outcome.failure().code, NORIA_E_TIMEOUT);
  EXPECT_NE(outcome.failure().text.find("a barrier made no progress"), std::string::npos);
  EXPECT_FALSE(engine->try_run(Kind::barrier, nullptr).value());
  Collective next;
  engine->submit(next, false);
  EXPECT_EQ(next.failure.text, outcome.failure().text);
}

TEST(EngineTest, A_submission_during_a_call_of_a_line_is_not_left_lying) {
  auto engine = make_fake_engine(kPatience);
  fake_ring().sleeps_until_woken = true;
  Collective submitted;
  std::thread other([&] {
    ASSERT_TRUE(eventually([] { return fake_ring().sleeps > 0; }));
    engine->submit(submitted, true);
    fake_ring().grant(kPlenty);
  });
  EXPECT_TRUE(engine->try_run(Kind::barrier, nullptr).value());
  other.join();
  EXPECT_TRUE(is_done_by_itself(submitted));
}

TEST(EngineTest, Work_that_nobody_waits_for_is_done_by_the_communication_thread) {
  auto engine = make_fake_engine(kPatience);
  std::array<Collective, 5> collectives;
  for (Collective& collective : collectives) engine->submit(collective, true);
  fake_ring().grant(5 * FakeRing::kSteps);
  for (Collective& collective : collectives) EXPECT_TRUE(is_done_by_itself(collective));
  EXPECT_EQ(fake_ring().who_drove().count(std::this_thread::get_id()), 0u);
}

TEST(EngineTest, Collectives_end_in_order_of_submission) {
  auto engine = make_fake_engine(kPatience);
  std::array<Collective, 3> collectives;
  for (Collective& collective : collectives) engine->submit(collective, true);
  for (size_t i = 0; i < collectives.size(); ++i) {
    fake_ring().grant(FakeRing::kSteps);
    ASSERT_TRUE(engine->wait(collectives[i], now_ns() + kPatience));
    // Expect: no later one is done.
    for (size_t later = i + 1; later < collectives.size(); ++later)
      EXPECT_FALSE(collectives[later].is_done());
  }
}

TEST(EngineTest, A_wait_gives_up_at_its_deadline_and_the_work_goes_on) {
  auto engine = make_fake_engine(kPatience);
  Collective collective;
  engine->submit(collective, false);
  EXPECT_FALSE(engine->wait(collective, now_ns() + 5_ms));
  EXPECT_FALSE(engine->wait(collective, now_ns()));
  fake_ring().grant(FakeRing::kSteps);
  EXPECT_TRUE(is_done_by_itself(collective));
}

TEST(EngineTest, A_wait_gives_up_at_its_deadline_though_the_ring_moves) {
  auto engine = make_fake_engine(kPatience);
  fake_ring().is_endless = true;
  Collective collective;
  engine->submit(collective, false);
  EXPECT_FALSE(engine->wait(collective, now_ns() + 5_ms));
  fake_ring().is_endless = false;
  fake_ring().grant(FakeRing::kSteps);
  EXPECT_TRUE(is_done_by_itself(collective));
}

TEST(EngineTest, Who_waits_drives_in_place_of_the_communication_thread) {
  auto engine = make_fake_engine(kPatience);
  fake_ring().sleeps_until_woken = true;
  Collective collective;
  engine->submit(collective, true);
  ASSERT_TRUE(eventually([] { return fake_ring().sleeps > 0; }));  // it has the seat, and sleeps
  std::thread neighbour([caller = std::this_thread::get_id()] {
    EXPECT_TRUE(eventually([&] { return fake_ring().who_drove().count(caller) != 0; }));
    fake_ring().grant(kPlenty);
  });
  EXPECT_TRUE(engine->wait(collective, now_ns() + kPatience));
  neighbour.join();
}

TEST(EngineTest, The_communication_thread_drives_again_when_nobody_waits_any_more) {
  auto engine = make_fake_engine(kPatience);
  Collective collective;
  engine->submit(collective, true);
  EXPECT_FALSE(engine->wait(collective, now_ns() + 2_ms));
  fake_ring().who_drove();
  fake_ring().grant(FakeRing::kSteps);
  EXPECT_TRUE(is_done_by_itself(collective));
  EXPECT_EQ(fake_ring().who_drove().count(std::this_thread::get_id()), 0u);
}

TEST(EngineTest, A_wait_for_a_part_ends_with_it) {
  auto engine = make_fake_engine(kPatience);
  Collective collective;
  collective.parts.resize(2);
  engine->submit(collective, true);
  collective.parts[0].set_end(1);
  EXPECT_FALSE(engine->wait(collective, kNever, &collective.parts[0]));

  // Another thread drives, for more.  Expect: who waits for a part sees its end all the same.
  std::thread other([&] { EXPECT_TRUE(engine->wait(collective, now_ns() + kPatience)); });
  ASSERT_TRUE(eventually([id = other.get_id()] { return fake_ring().who_drove().count(id) != 0; }));
  std::thread ender([&] { collective.parts[1].set_end(1); });
  EXPECT_FALSE(engine->wait(collective, kNever, &collective.parts[1]));
  ender.join();
  fake_ring().grant(FakeRing::kSteps);
  other.join();
}

TEST(EngineTest, A_wait_for_a_part_lets_who_drives_sleep) {
  auto engine = make_fake_engine(kPatience);
  fake_ring().sleeps_until_woken = true;
  Collective collective;
  collective.parts.resize(1);
  engine->submit(collective, true);
  std::thread other([&] { EXPECT_TRUE(engine->wait(collective, now_ns() + kPatience)); });
  ASSERT_TRUE(eventually([id = other.get_id()] { return fake_ring().who_drove().count(id) != 0; }));
  const uint64_t sleeps = fake_ring().sleeps;
  EXPECT_FALSE(engine->wait(collective, now_ns() + 50_ms, &collective.parts[0]));
  // Expect: it fell asleep, and once more after the nudge that the communication thread would have
  // needed. With one each time that it looks there would be more than ten.
  EXPECT_LE(fake_ring().sleeps - sleeps, 3u);
  fake_ring().grant(FakeRing::kSteps);
  other.join();
}

TEST(EngineTest, The_communication_thread_takes_no_signals) {
  const auto threads = [] {
    std::set<std::string> names;
    for (const auto& task : std::filesystem::directory_iterator("/proc/self/task"))
      names.insert(task.path());
    return names;
  };
  const std::set<std::string> before = threads();
  auto engine = make_fake_engine(kPatience);
  int seen = 0;
  for (const std::string& task : threads()) {
    if (before.count(task) != 0) continue;
    std::ifstream status(task + "/status");
    std::string line;
    while (std::getline(status, line) && line.rfind("SigBlk:", 0) != 0) {
    }
    // Expect: all that can be blocked are, SIGUSR1 and SIGTERM among them.
    const uint64_t blocked = std::strtoull(line.c_str() + sizeof "SigBlk:" - 1, nullptr, 16);
    for (const int number : {SIGINT, SIGTERM, SIGUSR1, SIGCHLD})
      EXPECT_NE(blocked & uint64_t{1} << (number - 1), 0u) << number;
    ++seen;
  }
  EXPECT_GE(seen, 1);
  // Expect: the caller's own mask is as before.
  sigset_t mine;
  pthread_sigmask(SIG_SETMASK, nullptr, &mine);
  EXPECT_EQ(sigismember(&mine, SIGTERM), 0);
}

TEST(EngineTest, A_sleeping_driver_is_woken_by_the_device) {
  auto engine = make_fake_engine(kPatience);
  Collective collective;
  engine->submit(collective, true);
  ASSERT_TRUE(eventually([] { return fake_ring().sleeps > 0; }));
  for (uint64_t step = 0; step < FakeRing::kSteps; ++step) fake_ring().grant(1);
  EXPECT_TRUE(is_done_by_itself(collective));
}

TEST(EngineTest, An_idle_engine_does_nothing) {
  auto engine = make_fake_engine(kPatience);
  fake_ring().grant(kPlenty);
  Collective collective;
  engine->submit(collective, true);
  ASSERT_TRUE(engine->wait(collective, now_ns() + kPatience));
  const uint64_t advances = fake_ring().advances;
  const uint64_t sleeps = fake_ring().sleeps;
  ::poll(nullptr, 0, 50);
  EXPECT_EQ(fake_ring().advances, advances);
  EXPECT_EQ(fake_ring().sleeps, sleeps);
}

TEST(EngineTest, A_waiting_driver_sleeps_rather_than_spins) {
  auto engine = make_fake_engine(kPatience);
  Collective collective;
  engine->submit(collective, true);
  ASSERT_TRUE(eventually([] { return fake_ring().sleeps > 0; }));
  const uint64_t advances = fake_ring().advances;
  ::poll(nullptr, 0, 100);
  // Expect: it looks now and then; a late wake-up may let it spin once more for its 30 us, which
  // are some thousand turns. Spinning on would be ten million.
  EXPECT_LE(fake_ring().advances - advances, 100'000u);
  fake_ring().grant(FakeRing::kSteps);
  EXPECT_TRUE(is_done_by_itself(collective));
}

// ---- no wake-up is lost -------------------------------------------------------------------------

TEST(EngineTest, No_ready_segment_is_missed_when_nobody_waits) {
  auto engine = make_fake_engine(kPatience);
  fake_ring().grant(kPlenty);
  fake_ring().sleeps_until_woken = true;
  for (int round = 0; round < 600; ++round) {
    Step step(4);
    engine->submit(step.collective, round % 2 == 0);
    for (size_t segment = 0; segment < 4; ++segment) {
      // From "while it spins" to "when it sleeps".
      const Nanoseconds until = now_ns() + (round % 64) * 1_us;
      while (now_ns() < until) {
      }
      step.make_ready(*engine, segment);
    }
    ASSERT_TRUE(is_done_by_itself(step.collective)) << "round " << round;
  }
}

TEST(EngineTest, No_ready_segment_is_missed_when_several_threads_give_and_one_waits) {
  auto engine = make_fake_engine(kPatience);
  fake_ring().grant(kPlenty);
  fake_ring().sleeps_until_woken = true;
  constexpr size_t kThreads = 3;
  constexpr int kRounds = 500;
  std::atomic<Step*> current{nullptr};
  std::atomic<int> published{0};
  std::atomic<int> finished{0};
  std::vector<std::thread> givers;
  for (size_t thread = 0; thread < kThreads; ++thread)
    givers.emplace_back([&, thread] {
      for (int round = 0; round < kRounds; ++round) {
        ASSERT_TRUE(eventually([&] {
          std::this_thread::yield();
          return published.load() > round;
        }));
        current.load()->make_ready(*engine, thread);
        finished.fetch_add(1);
      }
    });
  for (int round = 0; round < kRounds; ++round) {
    Step step(kThreads);
    engine->submit(step.collective, round % 3 == 0);
    current.store(&step);
    published.store(round + 1);
    const bool is_done = engine->wait(step.collective, now_ns() + kPatience);
    EXPECT_TRUE(is_done) << "round " << round;
    if (!is_done) break;
    // All gave before it could end; none touches the step once it counted itself.
    while (finished.load() < (round + 1) * int{kThreads}) std::this_thread::yield();
  }
  for (std::thread& giver : givers) giver.join();
}

TEST(EngineTest, No_submission_is_missed_between_blocking_and_asynchronous_callers) {
  auto engine = make_fake_engine(kPatience);
  fake_ring().grant(kPlenty);
  fake_ring().sleeps_until_woken = true;
  std::vector<std::thread> threads;
  for (int thread = 0; thread < 4; ++thread)
    threads.emplace_back([&, thread] {
      for (int round = 0; round < 600; ++round) {
        Collective collective;
        engine->submit(collective, (round + thread) % 2 == 0);
        ASSERT_TRUE(engine->wait(collective, now_ns() + kPatience));
        ASSERT_EQ(collective.failure.code, NORIA_OK);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

// ---- failures -----------------------------------------------------------------------------------

TEST(EngineTest, No_news_is_missed_where_some_wait_long_some_briefly_and_some_not_at_all) {
  auto engine = make_fake_engine(kPatience);
  fake_ring().sleeps_until_woken = true;
  const auto submit_many = [&](const std::function<bool(Collective&)>& wait) {
    for (int i = 0; i < 300; ++i) {
      Collective collective;
      engine->submit(collective, true);
      fake_ring().grant(FakeRing::kSteps);
      // Expect: it ends, whoever drives.
      ASSERT_TRUE(wait(collective)) << i;
    }
  };
  const auto waits_long = [&](Collective& collective) {
    return engine->wait(collective, now_ns() + kPatience);
  };
  const auto waits_briefly = [&](Collective& collective) {
    return eventually([&] { return engine->wait(collective, now_ns() + 20_us); });
  };
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back(submit_many, waits_long);
    threads.emplace_back(submit_many, waits_briefly);
  }
  submit_many(is_done_by_itself);
  for (std::thread& thread : threads) thread.join();
}

TEST(EngineTest, No_progress_within_the_bound_fails_with_whom_it_waited_for) {
  auto engine = make_fake_engine(20_ms);
  Collective collective;
  engine->submit(collective, true);
  ASSERT_TRUE(engine->wait(collective, now_ns() + kPatience));
  EXPECT_EQ(collective.failure.code, NORIA_E_TIMEOUT);
  EXPECT_NE(collective.failure.text.find("segment 3 of 12 from rank 7"), std::string::npos);
  EXPECT_TRUE(fake_ring().is_closed);

  // Expect: what follows fails at once, with the same text.
  Collective next;
  engine->submit(next, true);
  EXPECT_TRUE(next.is_done());
  EXPECT_EQ(next.failure.text, collective.failure.text);
}

std::vector<std::string>& warnings() {
  static std::vector<std::string> lines;
  return lines;
}

TEST(EngineTest, Half_of_the_bound_without_progress_is_warned_of_once) {
  warnings().clear();
  set_log_sink([](LogLevel, const char* text) { warnings().emplace_back(text); });
  {
    auto engine = make_fake_engine(40_ms);
    Collective collective;
    engine->submit(collective, true);
    ASSERT_TRUE(engine->wait(collective, now_ns() + kPatience));
    EXPECT_EQ(collective.failure.code, NORIA_E_TIMEOUT);
  }
  set_log_sink(&noria::detail::write_to_stderr);
  ASSERT_EQ(warnings().size(), 1U);
  EXPECT_NE(warnings()[0].find("an all-reduce has made no progress for"), std::string::npos);
  EXPECT_NE(warnings()[0].find("waiting for segment 3 of 12 from rank 7"), std::string::npos);
}

struct OwingStep : OpenStep {
  std::string owes() const override { return "has not given 'a'"; }
};

TEST(EngineTest, A_rank_that_holds_itself_up_is_warned_of_what_it_owes) {
  warnings().clear();
  set_log_sink([](LogLevel, const char* text) { warnings().emplace_back(text); });
  {
    const OwingStep owing;
    OpenSteps steps;
    steps.begin(&owing);
    auto engine = Engine::create(nullptr, nullptr, nullptr, 40_ms, &steps);
    ASSERT_TRUE(engine.is_ok());
    Step step(1);
    (*engine)->submit(step.collective, false);
    EXPECT_FALSE((*engine)->wait(step.collective, now_ns() + 100_ms));
    step.make_ready(**engine, 0);
    ASSERT_TRUE((*engine)->wait(step.collective, now_ns() + kPatience));
    EXPECT_EQ(step.collective.failure.code, NORIA_OK);
  }
  set_log_sink(&noria::detail::write_to_stderr);
  // Expect: once, and no failure: nobody else is to blame.
  ASSERT_EQ(warnings().size(), 1U);
  EXPECT_NE(warnings()[0].find("waiting for this rank; this rank has not given 'a'"),
            std::string::npos);
}

TEST(EngineTest, Waiting_again_and_again_puts_no_bound_off) {
  auto engine = make_fake_engine(40_ms);
  Collective collective;
  engine->submit(collective, true);
  const Nanoseconds deadline = now_ns() + kPatience;
  while (!collective.is_done() && now_ns() < deadline) {
    // While the communication thread sleeps with the seat.
    const uint64_t sleeps = fake_ring().sleeps;
    eventually([&] { return collective.is_done() || fake_ring().sleeps > sleeps; });
    engine->wait(collective, now_ns() + 10_us);
  }
  EXPECT_EQ(collective.failure.code, NORIA_E_TIMEOUT);
}

TEST(EngineTest, A_collectives_own_bound_counts_before_the_engines) {
  auto engine = make_fake_engine(kPatience);
  Collective collective;
  collective.timeout_ns = 20_ms;
  engine->submit(collective, false);
  ASSERT_TRUE(engine->wait(collective, now_ns() + kPatience));
  EXPECT_EQ(collective.failure.code, NORIA_E_TIMEOUT);
}

TEST(EngineTest, No_bound_runs_while_this_ranks_own_segments_are_not_ready) {
  auto engine = make_fake_engine(10_ms);
  fake_ring().grant(kPlenty);
  Step step(2);
  engine->submit(step.collective, true);
  step.make_ready(*engine, 0);
  ::poll(nullptr, 0, 60);
  step.make_ready(*engine, 1);
  ASSERT_TRUE(engine->wait(step.collective, now_ns() + kPatience));
  EXPECT_EQ(step.collective.failure.code, NORIA_OK);
}

TEST(EngineTest, A_failure_from_another_thread_ends_a_wait) {
  for (const bool helps : {true, false}) {
    auto engine = make_fake_engine(kPatience);
    Collective first, second;
    engine->submit(first, !helps);
    engine->submit(second, !helps);
    std::thread failing([&] {
      ASSERT_TRUE(eventually([] { return fake_ring().sleeps > 0; }));
      engine->fail({NORIA_E_ABORTED, "enough"});
    });
    ASSERT_TRUE(engine->wait(second, now_ns() + kPatience));
    failing.join();
    EXPECT_EQ(second.failure.code, NORIA_E_ABORTED);
    EXPECT_TRUE(first.is_done());
    EXPECT_EQ(first.failure.text, "enough");
    EXPECT_TRUE(engine->failed());
  }
}

TEST(EngineTest, A_failed_ring_fails_everything_queued) {
  auto engine = make_fake_engine(kPatience);
  std::array<Collective, 3> collectives;
  for (Collective& collective : collectives) engine->submit(collective, false);
  fake_ring().must_fail = true;
  ASSERT_TRUE(engine->wait(collectives[2], now_ns() + kPatience));
  for (const Collective& collective : collectives) {
    EXPECT_EQ(collective.failure.code, NORIA_E_NET);
    EXPECT_EQ(collective.failure.text, "the wire broke");
  }
}

TEST(EngineTest, The_end_aborts_what_was_not_waited_for) {
  auto engine = make_fake_engine(kPatience);
  Collective running, queued;
  engine->submit(running, true);
  engine->submit(queued, false);
  engine.reset();
  EXPECT_TRUE(running.is_done());
  EXPECT_TRUE(queued.is_done());
  EXPECT_EQ(running.failure.code, NORIA_E_ABORTED);
  EXPECT_EQ(queued.failure.code, NORIA_E_ABORTED);
}

// ---- limits -------------------------------------------------------------------------------------

TEST(EngineTest, Without_a_thread_is_refused_and_the_reason_is_told) {
  const test::NoThreads none;
  const auto engine = Engine::create(nullptr, nullptr, nullptr, kPatience, nullptr);
  // Expect: an error that says what to raise, and no end of the process.
  ASSERT_FALSE(engine.is_ok());
  EXPECT_EQ(engine.failure().code, NORIA_E_NOMEM);
  EXPECT_NE(engine.failure().text.find("no thread for the engine"), std::string::npos);
  EXPECT_NE(engine.failure().text.find("ulimit -u"), std::string::npos);
}

// ---- one rank -----------------------------------------------------------------------------------

TEST(EngineTest, One_rank_copies_at_submission) {
  auto engine = Engine::create(nullptr, nullptr, nullptr, kPatience, nullptr);
  ASSERT_TRUE(engine.is_ok());
  std::vector<float> in(1000, 3.0f), out(1000);
  Collective collective;
  collective.parts.push_back({.in = reinterpret_cast<const std::byte*>(in.data()),
                              .out = reinterpret_cast<std::byte*>(out.data()),
                              .count = 1000});
  (*engine)->submit(collective, true);
  EXPECT_TRUE(collective.is_done());
  EXPECT_EQ(out, in);
}

TEST(EngineTest, One_rank_waits_for_its_own_segments) {
  auto engine = Engine::create(nullptr, nullptr, nullptr, kPatience, nullptr);
  ASSERT_TRUE(engine.is_ok());
  std::vector<int64_t> values{1, 2, 3};
  Step step(3);
  step.collective.parts.push_back({.in = reinterpret_cast<const std::byte*>(values.data()),
                                   .out = reinterpret_cast<std::byte*>(values.data()),
                                   .count = 3,
                                   .dtype = NORIA_INT64});
  (*engine)->submit(step.collective, false);
  EXPECT_FALSE((*engine)->wait(step.collective, now_ns() + 2_ms));
  for (size_t segment = 0; segment < 3; ++segment) step.make_ready(**engine, segment);
  EXPECT_TRUE((*engine)->wait(step.collective, now_ns() + kPatience));
  EXPECT_EQ(step.collective.failure.code, NORIA_OK);
}

}  // namespace
}  // namespace noria::bucketing
