// Steps in which tensors take no part, come several times, or are accumulated: the rows of the
// conformance list (C..) and the properties that are about steps.
#include <gtest/gtest.h>

#include <atomic>
#include <limits>
#include <map>
#include <random>
#include <thread>

#include "tests/support/rank_reducer.hpp"
#include "tests/support/thread_ranks.hpp"

namespace noria::bucketing {
namespace {

using test::expect_failure;
using test::expect_ok;
using test::RankReducer;
using test::ThreadRanks;

constexpr uint32_t kA = 0, kB = 1, kC = 2, kD = 3;

// In reverse of registration: D and C share the first bucket, B the next, A the last.
std::vector<Tensor> four() {
  return {{"a", NORIA_FLOAT32, 3'000},
          {"b", NORIA_FLOAT32, 70'000},
          {"c", NORIA_FLOAT32, 500},
          {"d", NORIA_FLOAT32, 600}};
}

ReducerConfig config_of(bool arena, uint32_t unused, bool static_graph = false) {
  return {.arena = arena,
          .caps = {.first_bucket_bytes = 4'400, .bucket_bytes = 100'000},
          .unused = unused,
          .static_graph = static_graph};
}

// body(rank) on each of `size` ranks, in arena and in copy mode, with a copy of each bucket and of
// one at a time, with a plan that stays and with one that is given up after the first step.
void run_all_ways(int32_t size, const ReducerConfig& config,
                  const std::function<void(RankReducer&)>& body,
                  const std::vector<uint32_t>& fires = {}) {
  struct Way {
    bool arena;
    uint32_t max_in_flight;
  };
  for (const auto& [arena, max_in_flight] : {Way{true, 0}, Way{false, 0}, Way{false, 1}})
    for (const Order order : {Order::reverse, Order::arrival}) {
      ThreadRanks ranks(size);
      ranks.run([&, arena = arena, max_in_flight = max_in_flight](int32_t rank) {
        ReducerConfig mine = config;
        mine.arena = arena;
        mine.max_in_flight = max_in_flight;
        mine.order = order;
        RankReducer reducer(ranks.host(rank), mine, four(), fires);
        expect_ok(reducer.reducer.seal());
        body(reducer);
      });
    }
}

Outcome<Ok> declare(RankReducer& mine, std::vector<uint32_t> ids) {
  return mine.reducer.grad_unused(ids);
}

TEST(Observed, Buckets_of_the_step_after_which_the_plan_changed_keep_their_times) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    ReducerConfig config = config_of(true, NORIA_UNUSED_ERROR);
    config.order = Order::arrival;
    RankReducer mine(ranks.host(rank), config, four());
    expect_ok(mine.reducer.seal());
    for (uint64_t version = 1; version <= 2; ++version) {
      expect_ok(mine.reducer.step_begin());
      for (const uint32_t id : {kA, kB, kC, kD}) expect_ok(mine.fire(id, 1));
      expect_ok(mine.reducer.step_end());
      EXPECT_EQ(mine.reducer.plan_version(), 1U);
      const auto buckets = mine.reducer.last_buckets();
      ASSERT_TRUE(buckets.is_ok());
      for (const noria_bucket_info& bucket : *buckets) {
        EXPECT_LE(mine.reducer.last_step()->begin_ns, bucket.first_ns);
        EXPECT_LE(bucket.first_ns, bucket.end_ns);
      }
      // Expect: those of the plan that the step had, and of the new one once a step had it.
      EXPECT_EQ(buckets->front().bytes, version == 1 ? (500 + 600) * 4U : 3'000 * 4U);
    }
  });
}

// What communication costs the computation beside it stands in compute_ns, to be compared with the
// same backward pass alone; what the step waits for stands in exposed_ns. So a slow-down shows in
// one of the two, and in neither twice.
TEST(Observed, C41_Time_beside_communication_counts_as_computed_and_the_rest_as_exposed) {
  run_all_ways(2, config_of(true, NORIA_UNUSED_ERROR), [](RankReducer& mine) {
    expect_ok(mine.reducer.step_begin());
    for (const uint32_t id : {kD, kC}) expect_ok(mine.fire(id, 1));
    EXPECT_EQ(mine.told_value(kD), 1);  // its bucket was reduced before the others are given
    for (const uint32_t id : {kB, kA}) expect_ok(mine.fire(id, 1));
    expect_ok(mine.reducer.step_end());
    const noria_step_info step = mine.reducer.last_step().value();
    const noria_bucket_info first = mine.reducer.last_buckets().value().front();
    EXPECT_LE(first.end_ns, step.last_gradient_ns);
    EXPECT_GE(step.compute_ns, first.wire_ns);
    EXPECT_EQ(step.compute_ns, step.last_gradient_ns - step.begin_ns);
    EXPECT_EQ(step.compute_ns + step.exposed_ns, step.end_ns - step.begin_ns);
  });
}

// ---- unused tensors -----------------------------------------------------------------------------

TEST(Unused, C23_With_keep_a_tensor_that_no_rank_used_stays_as_it_was) {
  for (const bool declares : {false, true})
    run_all_ways(3, config_of(true, NORIA_UNUSED_KEEP), [&](RankReducer& mine) {
      for (uint64_t step = 0; step < 2; ++step) {
        for (uint32_t id = 0; id < 4; ++id) mine.put(id, 7);
        expect_ok(mine.reducer.step_begin());
        expect_ok(mine.fire(kD, 3));
        if (mine.rank == 1) expect_ok(mine.fire(kC, 6));
        if (mine.rank != 1 && declares) expect_ok(declare(mine, {kC, kB}));
        expect_ok(mine.fire(kA, 9));
        expect_ok(mine.reducer.step_end());
        EXPECT_EQ(mine.value(kA), 9);
        EXPECT_EQ(mine.value(kD), 3);
        // Expect: nobody used B; C is the average everywhere, where this rank can know its place.
        EXPECT_EQ(mine.value(kB), 7);
        EXPECT_EQ(mine.told_value(kB), -2);
        EXPECT_EQ(mine.told_value(kC), 2);
        EXPECT_EQ(mine.told_value(kA), 9);
      }
    });
}

TEST(Unused, With_zero_what_did_not_come_counts_as_zeros) {
  run_all_ways(2, config_of(true, NORIA_UNUSED_ZERO), [](RankReducer& mine) {
    expect_ok(mine.reducer.step_begin());
    if (mine.rank == 0) expect_ok(mine.fire(kC, 6));
    expect_ok(mine.reducer.step_end());
    EXPECT_EQ(mine.told_value(kC), 3);
    for (const uint32_t id : {kA, kB, kD}) EXPECT_EQ(mine.told_value(id), 0);
  });
}

TEST(Unused, C27_A_frozen_tensor_is_declared_unused_and_no_error_with_any_policy) {
  for (const uint32_t unused : {NORIA_UNUSED_ERROR, NORIA_UNUSED_ZERO, NORIA_UNUSED_KEEP})
    run_all_ways(2, config_of(true, unused), [](RankReducer& mine) {
      expect_ok(mine.reducer.step_begin());
      expect_ok(declare(mine, {kB}));
      for (const uint32_t id : {kA, kC, kD}) expect_ok(mine.fire(id, 4));
      expect_ok(mine.reducer.step_end());
      for (const uint32_t id : {kA, kC, kD}) EXPECT_EQ(mine.value(id), 4);
    });
}

TEST(Unused, Declared_early_it_does_not_hold_up_its_bucket) {
  run_all_ways(2, config_of(true, NORIA_UNUSED_ERROR), [](RankReducer& mine) {
    expect_ok(mine.reducer.step_begin());
    expect_ok(mine.fire(kD, 5));
    expect_ok(declare(mine, {kC}));
    // Expect: the bucket of C and D ends, before anything else was given.
    EXPECT_EQ(mine.told_value(kD), 5);
    for (const uint32_t id : {kA, kB}) expect_ok(mine.fire(id, 1));
    expect_ok(mine.reducer.step_end());
  });
}

// Rank 1 does something that cannot be; all others are told so in this very step, and all go on.
void expect_late(const ReducerConfig& config, const std::vector<uint32_t>& fires,
                 const std::string& told, const std::function<Outcome<Ok>(RankReducer&)>& bad) {
  const uint32_t fires_of_b = fires.empty() ? 1 : fires[kB];
  run_all_ways(
      3, config,
      [&](RankReducer& mine) {
        expect_ok(mine.reducer.step_begin());
        for (const uint32_t id : {kA, kC, kD}) expect_ok(mine.fire(id, 4));
        if (mine.rank == 1) expect_failure(bad(mine), NORIA_E_DUP_READY, told);
        for (uint32_t fire = 0; mine.rank != 1 && fire < fires_of_b; ++fire)
          expect_ok(mine.fire(kB, 4));
        expect_failure(mine.reducer.step_end(), NORIA_E_DUP_READY,
                       "rank 1 gave too often 'b' (1 of 4 tensors)");
        expect_failure(mine.reducer.result(kA, 0), NORIA_E_STATE, "no step has succeeded");
        expect_ok(mine.reducer.reset());
        expect_ok(mine.reducer.step_begin());
        for (const uint32_t id : {kA, kC, kD}) expect_ok(mine.fire(id, 2));
        for (uint32_t fire = 0; fire < fires_of_b; ++fire) expect_ok(mine.fire(kB, 2));
        expect_ok(mine.reducer.step_end());
        EXPECT_EQ(mine.value(kB), 2);
      },
      fires);
}

TEST(Late, A_gradient_after_it_was_declared_unused_is_refused_by_name) {
  expect_late(config_of(true, NORIA_UNUSED_KEEP), {}, "'b', float32, 70000 elements was declared",
              [](RankReducer& mine) {
                expect_ok(declare(mine, {kB}));
                return mine.fire_late(kB);
              });
}

TEST(Late, Declared_unused_after_it_was_given_is_refused_by_name) {
  expect_late(config_of(true, NORIA_UNUSED_KEEP), {}, "'b', float32, 70000 elements was given",
              [](RankReducer& mine) {
                expect_ok(mine.fire(kB, 1));
                return declare(mine, {kB});
              });
}

TEST(Late, C15_One_fire_more_than_expected_is_refused_by_name) {
  expect_late(config_of(true, NORIA_UNUSED_ERROR), {1, 3, 1, 1},
              "call noria_grad_ready() 3 times, after the gradient was accumulated",
              [](RankReducer& mine) {
                for (int fire = 0; fire < 3; ++fire) expect_ok(mine.fire(kB, 1));
                return mine.fire(kB);
              });
}

TEST(Unused, Calls_that_cannot_be_meant_are_refused_and_change_nothing) {
  ThreadRanks ranks(1);
  RankReducer mine(ranks.host(0), config_of(true, NORIA_UNUSED_ERROR), four());
  expect_failure(mine.reducer.result(kA, 0), NORIA_E_STATE, "after noria_reducer_seal()");
  expect_ok(mine.reducer.seal());
  expect_failure(declare(mine, {kA}), NORIA_E_STATE, "noria_grad_unused() with no step open");
  expect_failure(mine.reducer.result(kA, 0), NORIA_E_STATE, "no step has succeeded");
  expect_ok(mine.reducer.step_begin());
  expect_failure(declare(mine, {kA, 4}), NORIA_E_ARG, "no tensor has id 4");
  expect_failure(mine.reducer.result(4, 0), NORIA_E_ARG, "no tensor has id 4");
  expect_failure(mine.reducer.result(kA, 0), NORIA_E_STATE, "was not given its gradient");
  for (uint32_t id = 0; id < 4; ++id) expect_ok(mine.fire(id, 2));
  EXPECT_EQ(mine.told_value(kA), 2);
  expect_ok(mine.reducer.step_end());
}

TEST(Missing, C18_A_tensor_that_never_came_is_named_on_all_ranks_in_the_same_step) {
  run_all_ways(2, config_of(true, NORIA_UNUSED_ERROR), [](RankReducer& mine) {
    expect_ok(mine.reducer.step_begin());
    for (uint32_t id = 0; id < 4; ++id)
      if (mine.rank == 0 || id != kB) expect_ok(mine.fire(id, 1));
    expect_failure(mine.reducer.step_end(), NORIA_E_MISSING,
                   "step 0 failed: rank 1 did not give 'b' (1 of 4 tensors)");
  });
}

TEST(Missing, C19_No_step_follows_one_that_missed_a_tensor_before_all_know) {
  run_all_ways(2, config_of(true, NORIA_UNUSED_ERROR), [](RankReducer& mine) {
    expect_ok(mine.reducer.step_begin());
    for (uint32_t id = 0; id < 4; ++id)
      if (mine.rank == 0 || id != kB) expect_ok(mine.fire(id, 1));
    expect_failure(mine.reducer.step_end(), NORIA_E_MISSING, "rank 1 did not give 'b'");
    // Expect: the rank whose own tensors were all there cannot go on by oversight.
    expect_failure(mine.reducer.step_begin(), NORIA_E_STATE, "step 0 failed");
    expect_failure(mine.reducer.step_begin(true), NORIA_E_STATE, "step 0 failed");
  });
}

TEST(Missing, C32_An_unused_tensor_is_told_as_such_with_whatever_else_is_wrong) {
  run_all_ways(2, config_of(true, NORIA_UNUSED_ERROR), [](RankReducer& mine) {
    expect_ok(mine.reducer.step_begin());
    for (uint32_t id = 0; id < 4; ++id)
      if (mine.rank == 0 || id != kB) expect_ok(mine.fire(id, 1));
    if (mine.rank == 1) expect_failure(mine.fire(kA), NORIA_E_DUP_READY, "'a'");
    expect_failure(mine.reducer.step_end(), NORIA_E_MISSING,
                   "rank 1 did not give 'b' (1 of 4 tensors) and gave too often 'a'");
  });
}

// ---- several fires a step -----------------------------------------------------------------------

TEST(Fires, C17_A_tensor_is_sent_with_the_last_of_its_expected_fires) {
  run_all_ways(2, config_of(true, NORIA_UNUSED_ERROR),
               [](RankReducer& mine) {
                 for (uint64_t step = 0; step < 3; ++step) {
                   expect_ok(mine.reducer.step_begin());
                   for (const uint32_t id : {kA, kC, kD}) expect_ok(mine.fire(id, 1));
                   // What the first two bring is not complete: only the sum counts.
                   expect_ok(mine.fire(kB, 100));
                   expect_ok(mine.fire(kB, 200));
                   expect_failure(mine.reducer.result(kB, 0), NORIA_E_STATE, "was not given");
                   expect_ok(mine.fire(kB, static_cast<float>(2 + 2 * mine.rank)));
                   expect_ok(mine.reducer.step_end());
                   EXPECT_EQ(mine.value(kB), 3);
                 }
               },
               {1, 3, 1, 1});
}

TEST(Fires, C17_Fewer_than_expected_fail_the_step_on_all_ranks_by_name) {
  run_all_ways(2, config_of(true, NORIA_UNUSED_ERROR),
               [](RankReducer& mine) {
                 expect_ok(mine.reducer.step_begin());
                 for (uint32_t id = 0; id < 4; ++id) expect_ok(mine.fire(id, 1));
                 if (mine.rank == 0) expect_ok(mine.fire(kB));
                 expect_failure(mine.reducer.step_end(), NORIA_E_MISSING,
                                "rank 1 gave less often than expected 'b' (1 of 4 tensors)");
               },
               {1, 2, 1, 1});
}

TEST(Fires, Where_tensors_may_be_unused_those_that_came_less_often_are_used) {
  run_all_ways(2, config_of(true, NORIA_UNUSED_KEEP),
               [](RankReducer& mine) {
                 expect_ok(mine.reducer.step_begin());
                 expect_ok(mine.fire(kB, 8));
                 expect_ok(mine.reducer.step_end());
                 EXPECT_EQ(mine.value(kB), 8);
                 EXPECT_EQ(mine.told_value(kA), -2);
               },
               {1, 2, 1, 1});
}

TEST(Fires, A_number_that_no_graph_has_is_refused) {
  ThreadRanks ranks(1);
  Reducer reducer(ranks.host(0), config_of(true, NORIA_UNUSED_ERROR));
  expect_failure(reducer.add("a", NORIA_FLOAT32, 4, UINT32_MAX), NORIA_E_ARG, "'a'");
  Reducer learns(ranks.host(0), config_of(true, NORIA_UNUSED_ERROR, true));
  expect_failure(learns.add("a", NORIA_FLOAT32, 4, 2), NORIA_E_ARG, "it is learned");
}

// ---- windows ------------------------------------------------------------------------------------

// In the manner of a framework: the sum of the window's gradients is in the gradient's memory.
void accumulate(RankReducer& mine, std::map<uint32_t, float>& sums, uint32_t id, float value) {
  expect_ok(mine.fire(id, sums[id] += value));
}

TEST(Windows, C20_A_tensor_of_earlier_passes_alone_is_averaged) {
  for (const uint32_t unused : {NORIA_UNUSED_ERROR, NORIA_UNUSED_KEEP})
    run_all_ways(2, config_of(true, unused), [](RankReducer& mine) {
      for (uint64_t round = 0; round < 2; ++round) {
        std::map<uint32_t, float> sums;
        expect_ok(mine.reducer.step_begin(true));
        for (const uint32_t id : {kA, kB, kC, kD}) accumulate(mine, sums, id, 1);
        const auto pass = mine.reducer.step_end();
        expect_ok(pass);
        EXPECT_EQ(pass->step, round);  // the number of the step that it is a part of
        expect_failure(mine.reducer.result(kA, 0), NORIA_E_STATE, "no step has succeeded");
        expect_ok(mine.reducer.step_begin());
        for (const uint32_t id : {kA, kD}) accumulate(mine, sums, id, 2);
        if (mine.rank == 1) expect_ok(declare(mine, {kC}));
        expect_ok(mine.reducer.step_end());
        EXPECT_EQ(mine.value(kA), 3);
        EXPECT_EQ(mine.value(kB), 1);
        EXPECT_EQ(mine.value(kC), 1);
      }
    });
}

TEST(Windows, C20_Used_on_one_rank_in_one_pass_is_used) {
  run_all_ways(3, config_of(true, NORIA_UNUSED_KEEP), [](RankReducer& mine) {
    for (uint32_t id = 0; id < 4; ++id) mine.put(id, 7);
    for (int pass = 0; pass < 3; ++pass) {
      expect_ok(mine.reducer.step_begin(true));
      if (pass == 1 && mine.rank == 2) expect_ok(mine.fire(kC, 6));
      expect_ok(mine.reducer.step_end());
    }
    expect_ok(mine.reducer.step_begin());
    expect_ok(mine.reducer.step_end());
    EXPECT_EQ(mine.told_value(kC), 2);
    for (const uint32_t id : {kA, kB, kD}) {
      EXPECT_EQ(mine.told_value(id), -2);
      EXPECT_EQ(mine.value(id), 7);
    }
    // A window ends with its step: what it used does not count in the next.
    expect_ok(mine.reducer.step_begin());
    expect_ok(mine.reducer.step_end());
    EXPECT_EQ(mine.told_value(kC), -2);
  });
}

TEST(Windows, What_was_wrong_in_an_earlier_pass_fails_the_step_on_all_ranks) {
  run_all_ways(2, config_of(true, NORIA_UNUSED_ERROR), [](RankReducer& mine) {
    expect_ok(mine.reducer.step_begin(true));
    expect_ok(mine.fire(kB, 1));
    if (mine.rank == 1) expect_failure(mine.fire(kB), NORIA_E_DUP_READY, "'b'");
    expect_ok(mine.reducer.step_end());
    expect_ok(mine.reducer.step_begin());
    for (uint32_t id = 0; id < 4; ++id) expect_ok(mine.fire(id, 1));
    expect_failure(mine.reducer.step_end(), NORIA_E_DUP_READY, "rank 1 gave too often 'b'");
    expect_ok(mine.reducer.reset());
    expect_ok(mine.reducer.step_begin());
    for (uint32_t id = 0; id < 4; ++id) expect_ok(mine.fire(id, 1));
    expect_ok(mine.reducer.step_end());
  });
}

TEST(Windows, A_reset_in_an_earlier_pass_drops_the_window_and_harms_nobody) {
  run_all_ways(2, config_of(true, NORIA_UNUSED_ERROR), [](RankReducer& mine) {
    if (mine.rank == 1) {
      expect_ok(mine.reducer.step_begin(true));
      for (uint32_t id = 0; id < 4; ++id) expect_ok(mine.fire(id, 50));
      expect_ok(mine.reducer.reset());
    }
    expect_ok(mine.reducer.step_begin());
    for (uint32_t id = 0; id < 4; ++id)
      if (mine.rank == 0 || id != kA) expect_ok(mine.fire(id, 1));
    // Expect: A of the pass that was dropped does not count.
    expect_failure(mine.reducer.step_end(), NORIA_E_MISSING, "rank 1 did not give 'a'");
  });
}

TEST(Windows, Destroyed_in_an_earlier_pass_it_harms_nobody) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    {
      RankReducer gone(ranks.host(rank), config_of(true, NORIA_UNUSED_ERROR), four());
      expect_ok(gone.reducer.seal());
      if (rank == 1) expect_ok(gone.reducer.step_begin(true));
    }
    RankReducer next(ranks.host(rank), config_of(true, NORIA_UNUSED_ZERO), four());
    expect_ok(next.reducer.seal());
    expect_ok(next.reducer.step_begin());
    expect_ok(next.reducer.step_end());
  });
}

// ---- static graphs ------------------------------------------------------------------------------

// One pass of a graph in which B fires twice and C never.
void run_pass(RankReducer& mine, std::map<uint32_t, float>& sums, float value) {
  accumulate(mine, sums, kD, value);
  expect_ok(mine.fire(kB, sums[kB]));
  accumulate(mine, sums, kB, value);
  accumulate(mine, sums, kA, value);
}

TEST(StaticGraphs, C21_Fires_are_counted_a_pass_whether_it_is_synchronised_or_not) {
  for (const bool static_graph : {true, false})
    for (const unsigned passes : {1U, 2U, 3U})
      run_all_ways(
          2, config_of(true, NORIA_UNUSED_ZERO, static_graph),
          [&](RankReducer& mine) {
            for (int window = 0; window < 3; ++window) {
              std::map<uint32_t, float> sums;
              for (unsigned pass = 1; pass <= passes; ++pass) {
                expect_ok(mine.reducer.step_begin(pass < passes));
                run_pass(mine, sums, static_cast<float>(1 + 2 * mine.rank));
                expect_ok(mine.reducer.step_end());
              }
              for (const uint32_t id : {kA, kB, kD})
                EXPECT_EQ(mine.value(id), static_cast<float>(2 * passes));
              EXPECT_EQ(mine.told_value(kC), 0);
            }
          },
          static_graph ? std::vector<uint32_t>{} : std::vector<uint32_t>{1, 2, 1, 1});
}

TEST(StaticGraphs, C22_What_never_fires_is_learned_by_watching_and_waited_for_no_more) {
  run_all_ways(2, config_of(true, NORIA_UNUSED_KEEP, true), [](RankReducer& mine) {
    for (uint64_t step = 0; step < 3; ++step) {
      for (uint32_t id = 0; id < 4; ++id) mine.put(id, 7);
      std::map<uint32_t, float> sums;
      expect_ok(mine.reducer.step_begin());
      run_pass(mine, sums, 3);
      // Expect: from the second step on the bucket of C and D ends before the step does.
      if (step == 0)
        expect_failure(mine.reducer.result(kD, 0), NORIA_E_STATE, "sends nothing before");
      else
        EXPECT_EQ(mine.told_value(kD), 3);
      expect_ok(mine.reducer.step_end());
      EXPECT_EQ(mine.value(kC), 7);
      EXPECT_EQ(mine.value(kB), 6 - 3);
    }
  });
}

TEST(StaticGraphs, What_is_declared_unused_in_the_first_pass_may_be_so_or_not_in_each_later_one) {
  for (const uint32_t unused : {NORIA_UNUSED_ERROR, NORIA_UNUSED_ZERO, NORIA_UNUSED_KEEP})
    for (const bool accumulates : {false, true})
      run_all_ways(2, config_of(true, unused, true), [&](RankReducer& mine) {
        for (uint64_t step = 0; step < 4; ++step) {
          std::map<uint32_t, float> sums;
          for (unsigned pass = accumulates ? 0 : 1; pass < 2; ++pass) {
            expect_ok(mine.reducer.step_begin(pass == 0));
            if (step != 2) expect_ok(declare(mine, {kC}));
            run_pass(mine, sums, 3);
            // Expect: it has no result of its own before the end, though its bucket has.
            if (step > 0 && pass == 1) {
              EXPECT_EQ(mine.told_value(kD), accumulates ? 6 : 3);
              expect_failure(mine.reducer.result(kC, 0), NORIA_E_STATE, "was not given");
            }
            expect_ok(mine.reducer.step_end());
          }
          EXPECT_EQ(mine.told_value(kC), unused == NORIA_UNUSED_KEEP ? -2 : 0);
        }
      });
}

TEST(StaticGraphs, What_is_learned_to_be_unused_is_declared_once_a_step) {
  run_all_ways(2, config_of(true, NORIA_UNUSED_ERROR, true), [](RankReducer& mine) {
    for (uint64_t step = 0; step < 2; ++step) {
      std::map<uint32_t, float> sums;
      expect_ok(mine.reducer.step_begin());
      expect_ok(declare(mine, {kC}));
      run_pass(mine, sums, 1);
      if (step == 0) expect_ok(mine.reducer.step_end());
    }
    if (mine.rank == 1) expect_failure(declare(mine, {kC}), NORIA_E_DUP_READY, "declared unused");
    expect_failure(mine.reducer.step_end(), NORIA_E_DUP_READY, "rank 1 gave too often 'c'");
  });
}

TEST(StaticGraphs, A_graph_that_changes_fails_the_step_on_all_ranks_by_name) {
  struct Change {
    std::function<Outcome<Ok>(RankReducer&)> made;
    noria_status code;
    std::string here, everywhere;
  };
  const Change changes[] = {
      {[](RankReducer& mine) { return mine.fire_late(kC); }, NORIA_E_DUP_READY,
       "'c', float32, 500 elements came never in the first step", "rank 1 gave too often 'c'"},
      {[](RankReducer& mine) { return mine.fire(kB); }, NORIA_E_DUP_READY, "came 2 times",
       "rank 1 gave too often 'b'"}};
  for (const Change& change : changes)
    run_all_ways(2, config_of(true, NORIA_UNUSED_ZERO, true), [&](RankReducer& mine) {
      for (uint64_t step = 0; step < 2; ++step) {
        std::map<uint32_t, float> sums;
        expect_ok(mine.reducer.step_begin());
        run_pass(mine, sums, 1);
        if (step == 0) expect_ok(mine.reducer.step_end());
      }
      if (mine.rank == 1) expect_failure(change.made(mine), change.code, change.here);
      expect_failure(mine.reducer.step_end(), change.code, change.everywhere);
    });
}

TEST(StaticGraphs, A_graph_that_shrinks_fails_the_step_whatever_the_policy) {
  run_all_ways(2, config_of(true, NORIA_UNUSED_KEEP, true), [](RankReducer& mine) {
    std::map<uint32_t, float> sums;
    expect_ok(mine.reducer.step_begin());
    run_pass(mine, sums, 1);
    expect_ok(mine.reducer.step_end());
    expect_ok(mine.reducer.step_begin());
    expect_ok(mine.fire(kB, 1));
    if (mine.rank == 0) expect_ok(mine.fire(kB));
    if (mine.rank == 0) expect_ok(mine.fire(kA, 1));
    if (mine.rank == 1) expect_ok(declare(mine, {kA}));  // is no excuse
    expect_ok(mine.fire(kD, 1));
    expect_failure(
        mine.reducer.step_end(), NORIA_E_MISSING,
        "rank 1 did not give 'a' (1 of 4 tensors) and gave less often than expected 'b'");
  });
}

TEST(StaticGraphs, A_step_that_fails_teaches_nothing) {
  run_all_ways(2, config_of(true, NORIA_UNUSED_ERROR, true), [](RankReducer& mine) {
    expect_ok(mine.reducer.step_begin());
    for (uint32_t id = 0; id < 4; ++id)
      if (mine.rank == 0 || id != kB) expect_ok(mine.fire(id, 1));
    expect_failure(mine.reducer.step_end(), NORIA_E_MISSING, "rank 1 did not give 'b'");
    expect_ok(mine.reducer.reset());
    for (uint64_t step = 0; step < 2; ++step) {
      expect_ok(mine.reducer.step_begin());
      for (int fire = 0; fire < 2; ++fire)
        for (uint32_t id = 0; id < 4; ++id) expect_ok(mine.fire(id, 1));
      expect_ok(mine.reducer.step_end());
    }
  });
}

// ---- a step's end -------------------------------------------------------------------------------

TEST(Ends, C35_A_step_ended_twice_is_reduced_once_and_reported_alike) {
  run_all_ways(2, config_of(true, NORIA_UNUSED_ERROR), [](RankReducer& mine) {
    expect_ok(mine.reducer.step_begin());
    for (uint32_t id = 0; id < 4; ++id) expect_ok(mine.fire(id, static_cast<float>(mine.rank)));
    const auto first = mine.reducer.step_end();
    expect_ok(first);
    mine.put(kA, 20);  // an optimiser's work, say
    const auto second = mine.reducer.step_end();
    expect_ok(second);
    EXPECT_EQ(second->step, first->step);
    EXPECT_EQ(second->begin_ns, first->begin_ns);
    EXPECT_EQ(second->end_ns, first->end_ns);
    EXPECT_EQ(mine.value(kA), 20);
    EXPECT_EQ(mine.value(kB), 0.5F);
  });
}

TEST(Ends, A_result_that_is_waited_for_does_not_hold_up_the_end_and_comes_with_it) {
  run_all_ways(2, config_of(true, NORIA_UNUSED_ZERO), [](RankReducer& mine) {
    for (int step = 0; step < 20; ++step) {
      expect_ok(mine.reducer.step_begin());
      expect_ok(mine.fire(kD, 4));
      std::atomic<bool> is_there{false};
      std::thread waiter([&] {
        is_there.store(true);
        const auto result = mine.reducer.result(kD, 0);
        // Expect: it is told to come again, or came when the step had ended; there is no third. C,
        // of the same bucket, comes with the end only.
        if (result.is_ok())
          EXPECT_EQ(*static_cast<const float*>(*result), 4);
        else
          EXPECT_EQ(result.failure().code, NORIA_E_STATE) << result.failure().text;
      });
      while (!is_there.load()) std::this_thread::yield();
      expect_ok(mine.reducer.step_end());
      waiter.join();
      EXPECT_EQ(mine.told_value(kD), 4);
    }
  });
}

// ---- what is not finite -------------------------------------------------------------------------

ReducerConfig checking() {
  ReducerConfig config = config_of(true, NORIA_UNUSED_ZERO);
  config.is_nonfinite_error = true;
  return config;
}

TEST(Nonfinite, Gradients_are_named_with_their_first_bucket_and_rank_on_all_ranks) {
  for (const float bad :
       {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()})
    for (const bool was_early : {false, true})
      run_all_ways(3, checking(), [&](RankReducer& mine) {
        const auto value = [&](uint32_t id) { return mine.rank == 1 && id <= kB ? bad : 1.0F; };
        expect_ok(mine.reducer.step_begin(was_early));
        for (const uint32_t id : {kA, kC, kB, kD}) expect_ok(mine.fire(id, value(id)));
        if (was_early) {
          expect_ok(mine.reducer.step_end());
          expect_ok(mine.reducer.step_begin());
        }
        expect_failure(mine.reducer.step_end(), NORIA_E_NONFINITE,
                       "step 0 failed: rank 1 gave values that are not finite in bucket 1, 'b' (1 "
                       "of 4 tensors); skip the step");
        expect_ok(mine.reducer.reset());
        expect_ok(mine.reducer.step_begin());
        for (uint32_t id = 0; id < 4; ++id) expect_ok(mine.fire(id, 2));
        expect_ok(mine.reducer.step_end());
        EXPECT_EQ(mine.value(kB), 2);
      });
}

TEST(Nonfinite, Sums_that_overflow_are_named_by_their_bucket) {
  run_all_ways(2, checking(), [](RankReducer& mine) {
    expect_ok(mine.reducer.step_begin());
    for (uint32_t id = 0; id < 4; ++id) expect_ok(mine.fire(id, id == kA ? 3e38F : 1));
    expect_failure(mine.reducer.step_end(), NORIA_E_NONFINITE,
                   "the sums in bucket 2 of 'a' (1 of 4 tensors) are not finite");
    expect_ok(mine.reducer.reset());
  });
}

TEST(Nonfinite, Passes_where_nobody_asked) {
  run_all_ways(2, config_of(true, NORIA_UNUSED_ZERO), [](RankReducer& mine) {
    expect_ok(mine.reducer.step_begin());
    expect_ok(mine.fire(kA, std::numeric_limits<float>::infinity()));
    expect_ok(mine.reducer.step_end());
    EXPECT_EQ(mine.value(kA), std::numeric_limits<float>::infinity());
  });
}

// ---- uneven inputs ------------------------------------------------------------------------------

TEST(Joins, Ranks_without_inputs_keep_the_others_company_until_all_are_done) {
  for (const uint32_t unused : {NORIA_UNUSED_ERROR, NORIA_UNUSED_KEEP})
    for (const bool static_graph : {false, true})
      run_all_ways(3, config_of(true, unused, static_graph), [](RankReducer& mine) {
        for (int epoch = 0; epoch < 2; ++epoch) {
          const int inputs = mine.rank;  // rank 0 has none
          for (int step = 0; step < inputs; ++step) {
            expect_ok(mine.reducer.step_begin());
            for (uint32_t id = 0; id < 4; ++id) expect_ok(mine.fire(id, 3));
            expect_ok(mine.reducer.step_end());
            EXPECT_EQ(mine.value(kB), static_cast<float>(2 - step));
          }
          int steps = inputs;
          for (bool is_over = false; !is_over; ++steps) {
            expect_ok(mine.reducer.step_join(&is_over));
            // Expect: what the others' step made of it, and nothing in the last.
            if (is_over) continue;
            EXPECT_EQ(mine.told_value(kB), static_cast<float>(2 - steps));
          }
          EXPECT_EQ(steps, 3);
        }
      });
}

TEST(Joins, What_was_accumulated_when_inputs_ran_out_is_given) {
  run_all_ways(2, config_of(true, NORIA_UNUSED_ERROR), [](RankReducer& mine) {
    expect_ok(mine.reducer.step_begin(mine.rank == 0));
    for (uint32_t id = 0; id < 4; ++id) expect_ok(mine.fire(id, 4));
    expect_ok(mine.reducer.step_end());
    bool is_over = false;
    for (int joins = mine.rank == 0 ? 2 : 1; joins > 0; --joins) {
      EXPECT_FALSE(is_over);
      EXPECT_EQ(mine.value(kC), 4);
      expect_ok(mine.reducer.step_join(&is_over));
    }
    EXPECT_TRUE(is_over);
  });
}

TEST(Joins, A_step_that_brings_only_what_was_accumulated_is_not_the_last) {
  run_all_ways(2, config_of(true, NORIA_UNUSED_ERROR), [](RankReducer& mine) {
    if (mine.rank == 0) {
      expect_ok(mine.reducer.step_begin(true));
      expect_ok(mine.fire(kB, 4));
      expect_ok(mine.reducer.step_end());
    }
    // Expect: both join, and both are told that this step has a result.
    bool is_over = true;
    expect_ok(mine.reducer.step_join(&is_over));
    EXPECT_FALSE(is_over);
    EXPECT_EQ(mine.told_value(kB), 2);
    expect_ok(mine.reducer.step_join(&is_over));
    EXPECT_TRUE(is_over);
  });
}

TEST(Joins, A_step_that_fails_fails_for_who_joined_too) {
  run_all_ways(2, config_of(true, NORIA_UNUSED_ERROR), [](RankReducer& mine) {
    if (mine.rank == 0) {
      bool is_over = true;
      expect_failure(mine.reducer.step_join(&is_over), NORIA_E_MISSING, "rank 1 did not give");
    } else {
      expect_ok(mine.reducer.step_begin());
      expect_failure(mine.reducer.step_end(), NORIA_E_MISSING, "rank 1 did not give");
    }
    expect_ok(mine.reducer.reset());
  });
}

// ---- properties ---------------------------------------------------------------------------------

TEST(Properties, P2_Tensors_dropped_at_random_on_one_rank_are_missing_on_all) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    ThreadRanks ranks(3);
    std::vector<std::string> texts(3);
    ranks.run([&](int32_t rank) {
      RankReducer mine(ranks.host(rank), config_of(seed % 2 == 0, NORIA_UNUSED_ERROR),
                       test::awkward_model({NORIA_FLOAT32, NORIA_BFLOAT16}));
      expect_ok(mine.reducer.seal());
      expect_ok(mine.reducer.step_begin());
      std::mt19937_64 random(seed);
      const auto dropped = static_cast<uint32_t>(random() % mine.model.size());
      for (const uint32_t id : test::random_order(mine.model.size(), seed))
        if (rank != 1 || (id != dropped && random() % 3 != 0)) expect_ok(mine.give(id, 0));
      const auto ended = mine.reducer.step_end();
      expect_failure(ended, NORIA_E_MISSING, "rank 1 did not give");
      if (!ended.is_ok()) texts[static_cast<size_t>(rank)] = ended.failure().text;
    });
    EXPECT_EQ(texts, std::vector<std::string>(3, texts[0]));
  }
}

TEST(Properties, P3_One_ready_too_many_at_random_is_told_to_all_and_they_recover) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    ThreadRanks ranks(2);
    ranks.run([&](int32_t rank) {
      RankReducer mine(ranks.host(rank), config_of(seed % 2 == 0, NORIA_UNUSED_ERROR),
                       test::awkward_model({NORIA_FLOAT32, NORIA_BFLOAT16}));
      expect_ok(mine.reducer.seal());
      expect_ok(mine.reducer.step_begin());
      const auto order = test::random_order(mine.model.size(), seed);
      for (const uint32_t id : order) expect_ok(mine.give(id, 0));
      const std::string name = "'" + mine.model[order[seed]].name + "'";
      if (rank == 1) expect_failure(mine.give_again(order[seed]), NORIA_E_DUP_READY, name);
      expect_failure(mine.reducer.step_end(), NORIA_E_DUP_READY, "rank 1 gave too often " + name);
      expect_ok(mine.reducer.reset());
      expect_ok(mine.reducer.step_begin());
      mine.give_all(order, 1, 2);
      expect_ok(mine.reducer.step_end());
      mine.expect_results(1, 2, NORIA_AVG);
    });
  }
}

TEST(Properties, P7_Accumulated_for_k_passes_the_step_is_that_of_the_sum) {
  for (const unsigned passes : {1U, 2U, 5U})
    run_all_ways(3, config_of(true, NORIA_UNUSED_ERROR), [&](RankReducer& mine) {
      std::map<uint32_t, float> sums;
      // Ranks need not have as many passes as each other.
      const unsigned more = mine.rank == 2 ? 2 : 0;
      for (unsigned pass = 1; pass <= passes + more; ++pass) {
        expect_ok(mine.reducer.step_begin(pass < passes + more));
        for (uint32_t id = 0; id < 4; ++id)
          accumulate(mine, sums, id, pass <= passes ? 3 * static_cast<float>(pass + id) : 0);
        expect_ok(mine.reducer.step_end());
      }
      for (uint32_t id = 0; id < 4; ++id)
        EXPECT_EQ(mine.value(id),
                  static_cast<float>(3 * (passes * (passes + 1) / 2 + passes * id)));
    });
}

}  // namespace
}  // namespace noria::bucketing
