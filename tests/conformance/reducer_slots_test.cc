// Copies of fewer buckets at once than there are: what comes of it is what comes of all, and what a
// caller may count on meanwhile.
#include <gtest/gtest.h>

#include <atomic>
#include <latch>
#include <limits>
#include <random>
#include <thread>

#include "tests/support/rank_reducer.hpp"
#include "tests/support/thread_ranks.hpp"

namespace noria::bucketing {
namespace {

using test::Bytes;
using test::expect_failure;
using test::expect_ok;
using test::RankReducer;
using test::ThreadRanks;

constexpr uint32_t kA = 0, kB = 1, kC = 2, kD = 3;

// In reverse of registration each has a bucket of its own, but B, which the strict plan splits.
std::vector<Tensor> four() {
  return {{"a", NORIA_FLOAT32, 900},
          {"b", NORIA_FLOAT32, 9'000},
          {"c", NORIA_FLOAT32, 1'000},
          {"d", NORIA_FLOAT32, 700}};
}

ReducerConfig config_of(uint32_t max_in_flight, PlanKind plan = PlanKind::ddp) {
  return {.caps = {.first_bucket_bytes = 2'800, .bucket_bytes = 4'000, .last_bucket_bytes = 4'000},
          .plan = plan,
          .unused = NORIA_UNUSED_ZERO,
          .max_in_flight = max_in_flight};
}

// The results of three steps on rank 0, gradients coming in an order that differs by rank and step.
std::vector<Bytes> results_with(uint32_t max_in_flight, int32_t size, PlanKind plan, Order order,
                                uint64_t seed) {
  std::vector<Bytes> results;
  ThreadRanks ranks(size);
  ranks.run([&](int32_t rank) {
    ReducerConfig config = config_of(max_in_flight, plan);
    config.caps.bucket_bytes = 64'000;
    config.order = order;
    RankReducer mine(
        ranks.host(rank), config,
        test::awkward_model({NORIA_FLOAT32, NORIA_FLOAT64, NORIA_FLOAT16, NORIA_BFLOAT16}));
    expect_ok(mine.reducer.seal());
    for (uint64_t step = 0; step < 3; ++step) {
      expect_ok(mine.reducer.step_begin());
      mine.give_all(test::random_order(mine.model.size(), seed * 10 + step), step,
                    1 + static_cast<unsigned>(rank));
      expect_ok(mine.reducer.step_end());
      if (rank == 0) results.push_back(mine.all_results());
    }
  });
  return results;
}

TEST(Slots, Give_the_bytes_that_a_copy_of_every_bucket_gives) {
  for (const PlanKind plan : kPlanKinds)
    for (const int32_t size : {2, 3}) {
      const auto all = results_with(0, size, plan, Order::reverse, 1);
      for (const uint32_t slots : {1U, 2U, 3U})
        for (const Order order : {Order::reverse, Order::arrival})
          EXPECT_TRUE(results_with(slots, size, plan, order, slots) == all)
              << slots << " slots, " << size << " ranks, " << plan_name(plan);
    }
}

// The first bucket of all is through before the last gradient is given, and so on.
TEST(Slots, Are_filled_anew_while_the_backward_pass_goes_on) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    RankReducer mine(ranks.host(rank), config_of(1, PlanKind::strict), four());
    expect_ok(mine.reducer.seal());
    for (int step = 0; step < 3; ++step) {
      expect_ok(mine.reducer.step_begin());
      // Three that must wait, and then the one for which they do.
      for (const uint32_t id : {kB, kA, kC}) expect_ok(mine.fire(id, static_cast<float>(id + 1)));
      expect_ok(mine.fire(kD, 9));
      // Expect: results of all, before the end.
      for (const uint32_t id : {kD, kC, kB, kA})
        EXPECT_EQ(mine.told_value(id), id == kD ? 9 : static_cast<float>(id + 1));
      expect_ok(mine.reducer.step_end());
      EXPECT_GT(mine.reducer.last_step()->buckets, 4U);  // some of b alone
    }
  });
}

TEST(Slots, A_gradient_that_waits_is_not_exchanged_for_one_that_comes_too_late) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    RankReducer mine(ranks.host(rank), config_of(1), four());
    expect_ok(mine.reducer.seal());
    expect_ok(mine.reducer.step_begin());
    expect_ok(mine.fire(kA, 1));
    {
      const std::vector<float> gone(mine.model[kA].numel, 7);
      expect_failure(mine.reducer.grad_ready(kA, gone.data()), NORIA_E_DUP_READY, "'a'");
    }
    for (const uint32_t id : {kD, kC, kB}) expect_ok(mine.fire(id, 1));
    // Expect: what was given first is read, whose memory is still there.
    expect_failure(mine.reducer.step_end(), NORIA_E_DUP_READY, "'a'");
    expect_ok(mine.reducer.reset());
    expect_ok(mine.reducer.step_begin());
    for (const uint32_t id : {kD, kC, kB, kA}) expect_ok(mine.fire(id, 2));
    expect_ok(mine.reducer.step_end());
    EXPECT_EQ(mine.value(kA), 2);
  });
}

TEST(Slots, Results_of_what_a_rank_did_not_give_are_kept_until_the_next_step) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    std::vector<Tensor> model = four();
    model.push_back({"none", NORIA_FLOAT32, 0});
    constexpr uint32_t kNone = 4;
    RankReducer mine(ranks.host(rank), config_of(1), model);
    expect_ok(mine.reducer.seal());
    for (int step = 0; step < 2; ++step) {
      expect_ok(mine.reducer.step_begin());
      for (const uint32_t id : {kD, kC, kB, kA})
        if (id % 2 == static_cast<uint32_t>(rank)) expect_ok(mine.fire(id, 4));
      expect_ok(mine.reducer.step_end());
      for (const uint32_t id : {kA, kB, kC, kD}) EXPECT_EQ(mine.told_value(id), 2);
      EXPECT_NE(mine.reducer.result(kNone, 0).value(), nullptr);
    }
  });
}

// Two slots: the plan that follows arrival has a bucket more than those, or no more.
TEST(Slots, Results_are_kept_when_the_next_plan_needs_slots_or_none) {
  const Tensor p{"p", NORIA_FLOAT32, 1'500}, q{"q", NORIA_FLOAT32, 500},
      r{"r", NORIA_FLOAT32, 1'000};
  struct Case {
    std::vector<Tensor> model;
    std::vector<uint32_t> arrival;
    uint32_t unused, buckets, then;
  };
  const Case cases[]{{{p, q, r}, {1, 0, 2}, 1, 2, 3}, {{r, p, q}, {0, 2, 1}, 2, 3, 2}};
  for (const Case& each : cases) {
    ThreadRanks ranks(2);
    ranks.run([&](int32_t rank) {
      ReducerConfig config = config_of(2);
      config.caps = {.first_bucket_bytes = 1'000, .bucket_bytes = 5'000};
      config.order = Order::arrival;
      RankReducer mine(ranks.host(rank), config, each.model);
      expect_ok(mine.reducer.seal());
      for (int step = 0; step < 3; ++step) {
        expect_ok(mine.reducer.step_begin());
        for (const uint32_t id : each.arrival)
          if (rank == 0 || id != each.unused) expect_ok(mine.fire(id, 4));
        const auto ended = mine.reducer.step_end();
        expect_ok(ended);
        EXPECT_EQ(ended->buckets, step == 0 ? each.buckets : each.then);
        for (uint32_t id = 0; id < 3; ++id)
          EXPECT_EQ(mine.told_value(id), id == each.unused ? 2 : 4);
      }
    });
  }
}

TEST(Slots, One_that_gave_nothing_and_one_that_leaves_hold_up_nobody) {
  ThreadRanks ranks(3);
  ranks.run([&](int32_t rank) {
    RankReducer mine(ranks.host(rank), config_of(1), four());
    expect_ok(mine.reducer.seal());
    expect_ok(mine.reducer.step_begin());
    for (const uint32_t id : {kA, kB}) expect_ok(mine.fire(id, 3));
    if (rank == 1)
      expect_ok(mine.reducer.reset());
    else
      expect_failure(mine.reducer.step_end(), NORIA_E_ABORTED, "rank 1");
    if (rank != 1) expect_ok(mine.reducer.reset());
    bool is_over = false;
    if (rank == 2) {
      expect_ok(mine.reducer.step_join(&is_over));
      // Expect: a third is missing from the sums of the others.
      for (const uint32_t id : {kA, kB, kC, kD}) EXPECT_EQ(mine.told_value(id), 2);
      return;
    }
    expect_ok(mine.reducer.step_begin());
    for (const uint32_t id : {kA, kB, kC, kD}) expect_ok(mine.fire(id, 3));
    expect_ok(mine.reducer.step_end());
    for (const uint32_t id : {kA, kB, kC, kD}) EXPECT_EQ(mine.value(id), 2);
  });
}

TEST(Slots, A_failed_communicator_ends_a_step_in_which_gradients_wait) {
  ThreadRanks ranks(2);
  std::latch both_gave(2);
  ranks.run([&](int32_t rank) {
    RankReducer mine(ranks.host(rank), config_of(1), four());
    expect_ok(mine.reducer.seal());
    expect_ok(mine.reducer.step_begin());
    for (const uint32_t id : {kA, kB, kC}) expect_ok(mine.fire(id, 3));
    both_gave.arrive_and_wait();
    if (rank == 1) ranks.host(1).engine->fail({NORIA_E_PEER, "rank 0 is gone"});
    expect_failure(mine.reducer.step_end(), NORIA_E_PEER, "rank 0 is gone");
  });
}

// It gave all long ago, perhaps, and the engine counts from the last news of its own side.
TEST(Slots, A_wait_for_others_is_news_when_it_begins) {
  ThreadRanks ranks(2);
  std::atomic<uint64_t> wakes_before{0};
  ranks.run([&](int32_t rank) {
    RankReducer mine(ranks.host(rank), config_of(1), four());
    expect_ok(mine.reducer.seal());
    expect_ok(mine.reducer.step_begin());
    if (rank == 0) {
      for (const uint32_t id : {kD, kC, kB, kA}) expect_ok(mine.fire(id, 1));
      wakes_before = ranks.wakes(0) + 1;
    } else {
      // Expect: of the other's step_end(), though nothing has ended and it has nothing to send.
      const Nanoseconds deadline = now_ns() + 20_s;
      while ((wakes_before == 0 || ranks.wakes(0) < wakes_before) && now_ns() < deadline)
        std::this_thread::yield();
      EXPECT_GE(ranks.wakes(0), wakes_before);
      for (const uint32_t id : {kD, kC, kB, kA}) expect_ok(mine.fire(id, 1));
    }
    expect_ok(mine.reducer.step_end());
  });
}

TEST(Slots, Times_of_a_gradient_that_waits_are_those_of_its_call) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    RankReducer mine(ranks.host(rank), config_of(1), four());
    expect_ok(mine.reducer.seal());
    expect_ok(mine.reducer.step_begin());
    for (const uint32_t id : {kA, kB, kC}) expect_ok(mine.fire(id, 3));
    const Nanoseconds waiting = now_ns();
    expect_ok(mine.fire(kD, 3));
    const Nanoseconds given = now_ns();
    expect_ok(mine.reducer.step_end());
    const auto buckets = mine.reducer.last_buckets().value();
    ASSERT_EQ(buckets.size(), 4U);
    EXPECT_GE(buckets[0].first_ns, waiting);
    EXPECT_LE(buckets[0].ready_ns, given);
    for (size_t b = 1; b < 4; ++b) {
      EXPECT_LE(buckets[b].ready_ns, waiting);
      // Expect: they were in place when the bucket before them had ended.
      EXPECT_GE(buckets[b].queued_ns, buckets[b - 1].end_ns);
    }
  });
}

}  // namespace
}  // namespace noria::bucketing
