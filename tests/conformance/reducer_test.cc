#include "bucketing/reducer.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <tuple>

#include "base/log.hpp"
#include "tests/support/gradients.hpp"
#include "tests/support/look_at.hpp"
#include "tests/support/rank_reducer.hpp"
#include "tests/support/thread_ranks.hpp"

namespace noria::bucketing {
namespace {

using test::Bytes;
using test::expect_failure;
using test::expect_ok;
using test::RankReducer;
using test::small_buckets;
using test::ThreadRanks;

const std::vector<noria_dtype> kFloats{NORIA_FLOAT32, NORIA_FLOAT64, NORIA_FLOAT16, NORIA_BFLOAT16};
const std::vector<noria_dtype> kAll{NORIA_FLOAT32,  NORIA_FLOAT64, NORIA_FLOAT16,
                                    NORIA_BFLOAT16, NORIA_INT32,   NORIA_INT64};

// ---- results ------------------------------------------------------------------------------------

struct Case {
  int32_t ranks;
  bool arena;
  noria_op op;
  PlanKind plan = PlanKind::ddp;
  uint32_t max_in_flight = 0;
};
class Steps : public testing::TestWithParam<Case> {};

TEST_P(Steps, P1_Give_the_same_bytes_on_all_ranks_whatever_the_order_of_arrival) {
  const int32_t size = GetParam().ranks;
  const noria_op op = GetParam().op;
  ThreadRanks ranks(size);
  constexpr uint64_t kSteps = 4;
  std::vector<std::vector<Bytes>> results(kSteps, std::vector<Bytes>(static_cast<size_t>(size)));
  ranks.run([&](int32_t rank) {
    ReducerConfig config = small_buckets(GetParam().arena, op, GetParam().plan);
    config.max_in_flight = GetParam().max_in_flight;
    RankReducer mine(ranks.host(rank), config,
                     test::awkward_model(op == NORIA_AVG ? kFloats : kAll));
    expect_ok(mine.reducer.seal());
    for (uint64_t step = 0; step < kSteps; ++step) {
      expect_ok(mine.reducer.step_begin());
      const uint64_t seed = step * 100 + static_cast<uint64_t>(rank);
      // The data of steps 2 and 3 are those of 0 and 1, in another order.
      mine.give_all(test::random_order(mine.model.size(), seed), step % 2,
                    1 + static_cast<unsigned>(rank + static_cast<int32_t>(step)) % 4);
      const auto ended = mine.reducer.step_end();
      expect_ok(ended);
      if (!ended.is_ok()) return;
      EXPECT_EQ(ended->step, step);
      mine.expect_results(step % 2, size, op);
      results[step][static_cast<size_t>(rank)] = mine.all_results();
    }
  });
  for (uint64_t step = 0; step < kSteps; ++step)
    for (const Bytes& bytes : results[step]) EXPECT_TRUE(bytes == results[step % 2][0]);
}

INSTANTIATE_TEST_SUITE_P(All, Steps,
                         testing::Values(Case{1, false, NORIA_AVG}, Case{1, true, NORIA_SUM},
                                         Case{2, false, NORIA_SUM}, Case{2, true, NORIA_AVG},
                                         Case{3, true, NORIA_AVG}, Case{4, false, NORIA_AVG},
                                         Case{4, true, NORIA_SUM},
                                         Case{1, false, NORIA_AVG, PlanKind::strict},
                                         Case{2, false, NORIA_SUM, PlanKind::strict},
                                         Case{3, true, NORIA_AVG, PlanKind::strict},
                                         Case{1, false, NORIA_SUM, PlanKind::ddp, 1},
                                         Case{2, false, NORIA_SUM, PlanKind::ddp, 1},
                                         Case{3, false, NORIA_AVG, PlanKind::strict, 1},
                                         Case{4, false, NORIA_AVG, PlanKind::strict, 2},
                                         Case{2, false, NORIA_SUM, PlanKind::planned, 3}));

// ---- plans that follow the order of arrival -----------------------------------------------------

ReducerConfig following(bool arena, PlanKind plan) {
  ReducerConfig config = small_buckets(arena, NORIA_AVG, plan);
  config.order = Order::arrival;
  return config;
}

// A step in which gradients come in this order, from one thread.
noria_step_info run_step(RankReducer& mine, const std::vector<uint32_t>& order, uint64_t step,
                         int32_t ranks) {
  expect_ok(mine.reducer.step_begin());
  mine.give_all(order, step, 1);
  const auto ended = mine.reducer.step_end();
  expect_ok(ended);
  mine.expect_results(step, ranks, NORIA_AVG);
  return ended.is_ok() ? ended.value() : noria_step_info{};
}

std::vector<uint64_t> bucket_bytes(const Reducer& reducer) {
  std::vector<uint64_t> bytes;
  const auto buckets = reducer.last_buckets().value();
  for (const noria_bucket_info& info : buckets) bytes.push_back(info.bytes);
  return bytes;
}

TEST(Reducer, After_the_first_step_buckets_follow_rank_0s_order_of_arrival) {
  struct Way {
    bool arena;
    uint32_t max_in_flight;
  };
  for (const PlanKind kind : kPlanKinds)
    for (const auto& [arena, max_in_flight] : {Way{false, 0}, Way{false, 2}, Way{true, 1}}) {
      constexpr int32_t kRanks = 3;
      ThreadRanks ranks(kRanks);
      std::vector<std::vector<uint64_t>> buckets(kRanks);
      ranks.run([&, arena = arena, max_in_flight = max_in_flight](int32_t rank) {
        // One rank with views ties the tensors of all.
        ReducerConfig config = following(arena && rank == 1, kind);
        if (!config.arena) config.max_in_flight = max_in_flight;
        RankReducer mine(ranks.host(rank), config, test::awkward_model(kFloats));
        expect_ok(mine.reducer.seal());
        std::vector<std::byte*> views;
        for (uint32_t id = 0; arena && rank == 1 && id < mine.model.size(); ++id)
          views.push_back(mine.reducer.view(id)->data());
        // Rank 0's is the order of registration, the reverse of what is assumed; nobody else's is.
        auto order = test::random_order(mine.model.size(), static_cast<uint64_t>(rank));
        if (rank == 0) std::sort(order.begin(), order.end());
        EXPECT_EQ(mine.reducer.plan_version(), 0u);
        for (uint64_t step = 0; step < 3; ++step) {
          run_step(mine, order, step, kRanks);
          EXPECT_EQ(mine.reducer.plan_version(), 1u);
        }
        buckets[static_cast<size_t>(rank)] = bucket_bytes(mine.reducer);
        for (uint32_t id = 0; id < views.size(); ++id)
          EXPECT_EQ(mine.reducer.view(id)->data(), views[id]);
      });
      for (const auto& of_rank : buckets) EXPECT_EQ(of_rank, buckets[0]);

      // Expect: without views the plan is the planner's of that order.
      if (arena || kind == PlanKind::planned) continue;
      std::vector<PlanTensor> tensors;
      std::vector<uint32_t> order;
      for (const Tensor& tensor : test::awkward_model(kFloats)) {
        order.push_back(static_cast<uint32_t>(order.size()));
        tensors.push_back({tensor.numel, tensor.dtype});
      }
      Plan expected = plan_buckets(kind, tensors, order, following(false, kind).caps);
      launch_in_order(expected, order);
      std::vector<uint64_t> bytes;
      for (const Bucket& bucket : expected.buckets) bytes.push_back(bucket.bytes);
      EXPECT_EQ(buckets[0], bytes);
    }
}

TEST(Reducer, A_step_that_failed_is_not_the_one_that_is_observed) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    RankReducer mine(ranks.host(rank), following(rank == 0, PlanKind::ddp),
                     test::awkward_model(kFloats));
    expect_ok(mine.reducer.seal());
    expect_ok(mine.reducer.step_begin());
    expect_failure(mine.reducer.step_end(), NORIA_E_MISSING, "did not give");
    expect_ok(mine.reducer.reset());
    EXPECT_EQ(mine.reducer.plan_version(), 0u);
    for (uint64_t step = 0; step < 2; ++step)
      run_step(mine, test::random_order(mine.model.size(), 1), step, 2);
    EXPECT_EQ(mine.reducer.plan_version(), 1u);
  });
}

TEST(Reducer, A_step_to_which_rank_0_gave_nothing_is_not_the_one_that_is_observed) {
  for (const PlanKind kind : kPlanKinds) {
    ThreadRanks ranks(2);
    ranks.run([&](int32_t rank) {
      RankReducer mine(ranks.host(rank), following(false, kind), test::awkward_model(kFloats));
      expect_ok(mine.reducer.seal());
      const auto order = test::random_order(mine.model.size(), 1);
      if (rank == 0) {
        bool is_over = true;
        expect_ok(mine.reducer.step_join(&is_over));
        EXPECT_FALSE(is_over);
      } else {
        expect_ok(mine.reducer.step_begin());
        mine.give_all(order, 0, 1);
        expect_ok(mine.reducer.step_end());
      }
      // Expect: what follows is observed instead.
      EXPECT_EQ(mine.reducer.plan_version(), 0U);
      run_step(mine, order, 1, 2);
      EXPECT_EQ(mine.reducer.plan_version(), 1U);
    });
  }
}

TEST(Reducer, A_rank_that_makes_another_plan_of_arrivals_or_says_none_is_told_on_all) {
  for (const auto& [what, bytes, words] :
       {std::tuple{"order of arrival", "", "a rank said nothing of its order of arrival"},
        std::tuple{"plan of arrival", "7",
                   "the ranks made different plans of rank 0's order of arrival: "}}) {
    ThreadRanks ranks(2);
    ranks.forge(1, what, bytes);
    ranks.run([&ranks, expected = words](int32_t rank) {
      RankReducer mine(ranks.host(rank), following(true, PlanKind::ddp),
                       {{"a", NORIA_FLOAT32, 4000}, {"b", NORIA_FLOAT32, 4000}});
      expect_ok(mine.reducer.seal());
      expect_ok(mine.reducer.step_begin());
      mine.give_all({0, 1}, 0, 1);
      expect_failure(mine.reducer.step_end(), NORIA_E_MISMATCH, expected);
      // Expect: the plan that all have stays.
      EXPECT_EQ(mine.reducer.plan_version(), 0U);
    });
  }
}

TEST(Reducer, A_planned_reducer_says_that_it_cannot_measure_while_another_has_a_step_open) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    const std::vector<Tensor> model{{"a", NORIA_FLOAT32, 100}};
    RankReducer open(ranks.host(rank), small_buckets(true), model);
    RankReducer planned(ranks.host(rank), following(true, PlanKind::planned), model);
    expect_ok(open.reducer.seal());
    if (rank == 1) expect_ok(open.reducer.step_begin());
    expect_failure(planned.reducer.seal(), NORIA_E_STATE,
                   "rank 1: a planned reducer measures the link at seal");
    if (rank == 0) expect_ok(open.reducer.step_begin());
    expect_ok(open.give(0, 0));
    expect_ok(open.reducer.step_end());

    // Expect: between steps it can, with what was registered before.
    expect_ok(planned.reducer.seal());
    run_step(planned, {0}, 1, 2);
  });
}

TEST(Reducer, What_a_ranks_own_order_costs_is_told_by_that_rank) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    const std::vector<Tensor> model(
        {{"a", NORIA_FLOAT32, 4000}, {"b", NORIA_FLOAT32, 4000}, {"c", NORIA_FLOAT32, 4000}});
    RankReducer mine(ranks.host(rank), small_buckets(true), model);
    expect_ok(mine.reducer.seal());
    const noria_step_info times = run_step(
        mine, rank == 0 ? std::vector<uint32_t>{2, 1, 0} : std::vector<uint32_t>{0, 1, 2}, 0, 2);
    if (rank == 0)
      EXPECT_EQ(times.order_wait_ns, 0);
    else
      EXPECT_GT(times.order_wait_ns, 0);
  });
}

// What ranks say of it, where rank 1's gradients come in reverse of rank 0's, 3 ms apart.
std::vector<std::string> told_of_order(Order order) {
  static std::mutex mutex;
  static std::vector<std::string> lines;
  lines.clear();
  set_log_sink([](LogLevel, const char* text) {
    const std::lock_guard lock(mutex);
    lines.push_back(text);
  });
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    const std::vector<Tensor> model(
        {{"a", NORIA_FLOAT32, 4000}, {"b", NORIA_FLOAT32, 4000}, {"c", NORIA_FLOAT32, 4000}});
    ReducerConfig config = small_buckets(true);
    config.order = order;
    RankReducer mine(ranks.host(rank), config, model);
    expect_ok(mine.reducer.seal());
    for (uint64_t step = 0; step < 5; ++step) {
      expect_ok(mine.reducer.step_begin());
      for (uint32_t i = 0; i < 3; ++i) {
        expect_ok(mine.give(rank == 0 ? i : 2 - i, step));
        std::this_thread::sleep_for(std::chrono::milliseconds(3));  // what a layer takes
      }
      expect_ok(mine.reducer.step_end());
    }
  });
  set_log_sink(&detail::write_to_stderr);
  return lines;
}

TEST(Reducer, An_order_that_costs_time_is_told_with_what_helps) {
  const auto of_registration = told_of_order(Order::reverse);
  ASSERT_EQ(of_registration.size(), 1U);
  EXPECT_NE(of_registration[0].find("rank 0: gradients come in another order"), std::string::npos);
  EXPECT_NE(of_registration[0].find("set order to NORIA_ORDER_ARRIVAL"), std::string::npos);

  // Expect: rank 0's order is learned of the first step, and is rank 1's no more.
  const auto of_arrival = told_of_order(Order::arrival);
  ASSERT_EQ(of_arrival.size(), 1U);
  EXPECT_NE(of_arrival[0].find("rank 1: gradients come in another order"), std::string::npos);
  EXPECT_NE(of_arrival[0].find("the order is rank 0's of the step that was observed"),
            std::string::npos);
}

TEST(Reducer, C09_Results_do_not_depend_on_where_buckets_are_cut) {
  constexpr int32_t kRanks = 3;
  ThreadRanks ranks(kRanks);
  ranks.run([&](int32_t rank) {
    const auto results = [&](PlanKind plan, uint64_t cap) {
      ReducerConfig config = small_buckets(false, NORIA_AVG, plan);
      config.caps.bucket_bytes = cap;
      RankReducer mine(ranks.host(rank), config, test::awkward_model(kFloats));
      expect_ok(mine.reducer.seal());
      expect_ok(mine.reducer.step_begin());
      mine.give_all(test::random_order(mine.model.size(), cap), 0, 2);
      expect_ok(mine.reducer.step_end());
      mine.expect_results(0, kRanks, NORIA_AVG);
      return mine.all_results();
    };
    const Bytes all_in_one = results(PlanKind::ddp, 1_GiB);
    for (const PlanKind plan : kPlanKinds)
      for (const uint64_t cap : {uint64_t{1}, 3_KiB, 200_KiB})
        EXPECT_TRUE(results(plan, cap) == all_in_one) << plan_name(plan) << " " << cap;
  });
}

TEST(Reducer, Nothing_registered_makes_steps_of_nothing) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    Reducer reducer(ranks.host(rank), {});
    expect_ok(reducer.seal());
    for (int step = 0; step < 2; ++step) {
      expect_ok(reducer.step_begin());
      expect_ok(reducer.step_end());
    }
    EXPECT_EQ(reducer.buckets(), 0u);
  });
}

TEST(Reducer, Views_are_apart_aligned_and_where_the_plan_says) {
  ThreadRanks ranks(1);
  RankReducer one(ranks.host(0), small_buckets(true, NORIA_SUM), test::awkward_model(kAll));
  expect_ok(one.reducer.seal());
  std::vector<std::pair<uintptr_t, uintptr_t>> places;
  for (uint32_t id = 0; id < one.model.size(); ++id) {
    const auto view = one.reducer.view(id).value();
    const uint32_t element = dtype_bytes(one.model[id].dtype);
    const auto address = reinterpret_cast<uintptr_t>(view.data());
    EXPECT_EQ(view.size(), one.model[id].numel * element);
    EXPECT_EQ(address % element, 0u);
    if (!view.empty()) places.push_back({address, address + view.size()});
  }
  std::sort(places.begin(), places.end());
  for (size_t i = 1; i < places.size(); ++i) EXPECT_LE(places[i - 1].second, places[i].first);
}

TEST(Reducer, P8_Eight_threads_give_at_once) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    RankReducer mine(ranks.host(rank), small_buckets(rank == 0), test::awkward_model(kFloats));
    expect_ok(mine.reducer.seal());
    for (uint64_t step = 0; step < 3; ++step) {
      expect_ok(mine.reducer.step_begin());
      mine.give_all(test::random_order(mine.model.size(), step), step, 8);
      expect_ok(mine.reducer.step_end());
      mine.expect_results(step, 2, NORIA_AVG);
    }
  });
}

TEST(Reducer, A_hundred_thousand_tensors_make_a_step) {
  std::vector<Tensor> model;
  for (uint64_t i = 0; i < 100'000; ++i)
    model.push_back({"layer." + std::to_string(i), NORIA_FLOAT32, i % 4});
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    RankReducer mine(ranks.host(rank), small_buckets(true), model);
    expect_ok(mine.reducer.seal());
    expect_ok(mine.reducer.step_begin());
    mine.give_all(test::random_order(model.size(), static_cast<uint64_t>(rank)), 0, 2);
    expect_ok(mine.reducer.step_end());
    mine.expect_results(0, 2, NORIA_AVG);
  });
}

TEST(Reducer, Two_reducers_have_steps_open_and_end_them_in_the_order_of_their_beginning) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    const std::vector<Tensor> model{{"a", NORIA_FLOAT32, 100}};
    RankReducer first(ranks.host(rank), small_buckets(true), model);
    RankReducer second(ranks.host(rank), small_buckets(false), model);
    expect_ok(first.reducer.seal());
    expect_ok(second.reducer.seal());
    for (uint64_t step = 0; step < 3; ++step) {
      RankReducer& before = step == 1 ? second : first;
      RankReducer& after = step == 1 ? first : second;
      expect_ok(before.reducer.step_begin());
      expect_ok(after.reducer.step_begin());
      expect_ok(after.give(0, step));
      expect_failure(after.reducer.result(0, 1_ms), NORIA_E_TIMEOUT,
                     "another reducer's step began before this one");
      expect_failure(after.reducer.step_end(), NORIA_E_STATE, "end it first");
      expect_failure(after.reducer.reset(), NORIA_E_STATE, "end it first");
      bool is_over = false;
      expect_failure(after.reducer.step_join(&is_over), NORIA_E_STATE, "is a whole step");
      expect_ok(before.give(0, step));
      expect_ok(before.reducer.step_end());
      expect_ok(after.reducer.step_end());
      for (RankReducer* each : {&before, &after}) each->expect_results(step, 2, NORIA_AVG);
    }
  });
}

TEST(Reducer, A_gradient_wakes_the_engine_only_when_it_completes_a_piece) {
  ThreadRanks ranks(1);
  RankReducer mine(ranks.host(0), small_buckets(true),
                   {{"a", NORIA_FLOAT32, 10}, {"b", NORIA_FLOAT32, 10}, {"c", NORIA_FLOAT32, 10}});
  expect_ok(mine.reducer.seal());
  expect_ok(mine.reducer.step_begin());
  expect_ok(mine.give(0, 0));
  expect_ok(mine.give(2, 0));
  EXPECT_EQ(ranks.wakes(0), 0u);
  expect_ok(mine.give(1, 0));
  EXPECT_EQ(ranks.wakes(0), 1u);
  expect_ok(mine.reducer.step_end());
}

TEST(Reducer, Times_are_in_order_and_say_what_was_hidden) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    RankReducer mine(ranks.host(rank), small_buckets(rank == 0), test::awkward_model(kFloats));
    expect_ok(mine.reducer.seal());
    EXPECT_EQ(mine.reducer.last_buckets()->size(), mine.reducer.buckets());
    expect_failure(mine.reducer.last_step(), NORIA_E_STATE, "no step of this reducer");
    const int64_t before = now_ns();
    expect_ok(mine.reducer.step_begin());
    mine.give_all(test::random_order(mine.model.size(), 3), 0, 1);
    const auto step = mine.reducer.step_end();
    const int64_t after = now_ns();
    ASSERT_TRUE(step.is_ok());

    uint64_t bytes = 0, tensors = 0;
    int64_t wire = 0, last = 0;
    const auto buckets = mine.reducer.last_buckets().value();
    for (size_t b = 0; b < buckets.size(); ++b) {
      bytes += buckets[b].bytes;
      tensors += buckets[b].tensors;
      wire += buckets[b].wire_ns;
      last = std::max(last, buckets[b].ready_ns);
      EXPECT_EQ(buckets[b].bucket, b);
      if (buckets[b].bytes == 0) continue;
      // Expect: first gradient, first complete piece, last piece reduced; the last gradient and the
      // start on the wire lie between, in either order.
      EXPECT_LE(step->begin_ns, buckets[b].first_ns);
      EXPECT_LE(buckets[b].first_ns, buckets[b].queued_ns);
      EXPECT_LE(buckets[b].first_ns, buckets[b].ready_ns);
      EXPECT_LE(buckets[b].queued_ns, buckets[b].start_ns);
      EXPECT_LE(buckets[b].ready_ns, buckets[b].end_ns);
      EXPECT_LE(buckets[b].start_ns, buckets[b].end_ns);
      EXPECT_LE(buckets[b].end_ns, step->end_ns);
    }
    EXPECT_EQ(bytes, mine.reducer.bytes());
    EXPECT_EQ(tensors, mine.model.size());

    // Expect: the step is the sum of its parts, and of the step that the caller's clock saw.
    EXPECT_EQ(step->bytes, bytes);
    EXPECT_EQ(step->buckets, buckets.size());
    EXPECT_EQ(step->communication_ns, wire);
    EXPECT_EQ(step->last_gradient_ns, last);
    EXPECT_LE(before, step->begin_ns);
    EXPECT_LE(step->end_ns, after);
    EXPECT_EQ(step->begin_ns + step->compute_ns + step->exposed_ns, step->end_ns);
    EXPECT_EQ(step->backlog_ns + step->tail_ns + step->finish_ns, step->exposed_ns);
    EXPECT_EQ(mine.reducer.last_step()->end_ns, step->end_ns);
  });
}

// What the user's clock reads before it gives the last gradient, and after step_end(), encloses
// what is reported; and a clock read inside, by another thread that the step waits for, is enclosed
// by it. So the report lies between two outer clocks however slow the machine is.
TEST(Reducer, Exposed_time_lies_between_two_clocks_of_the_callers) {
  ThreadRanks ranks(2);
  std::atomic<int64_t> given{0}, released{0};
  ranks.run([&](int32_t rank) {
    RankReducer mine(ranks.host(rank), small_buckets(true), {{"w", NORIA_FLOAT32, 5000}});
    expect_ok(mine.reducer.seal());
    expect_ok(mine.reducer.step_begin());
    if (rank == 1) {  // holds up rank 0, which has given all it has
      while (given.load() == 0) std::this_thread::yield();
      released.store(now_ns());
      expect_ok(mine.give(0, 0));
      expect_ok(mine.reducer.step_end());
      return;
    }
    const int64_t before = now_ns();
    expect_ok(mine.give(0, 0));
    const int64_t after_gift = now_ns();
    given.store(after_gift);
    const auto step = mine.reducer.step_end();
    const int64_t ended = now_ns();
    ASSERT_TRUE(step.is_ok());
    // Expect: no more than the outer clock, no less than the time for which rank 1 held it up.
    EXPECT_LE(step->exposed_ns, ended - before);
    EXPECT_GE(step->exposed_ns, released.load() - after_gift);
    // Expect: all of it is the one bucket's, but for the end.
    EXPECT_EQ(step->backlog_ns, 0);
    EXPECT_GE(step->tail_ns, released.load() - after_gift);
  });
}

// ---- what others got wrong (ids are of the field's bug reports) ---------------------------------

ReducerConfig a_bucket_each(bool arena = true) { return {.arena = arena, .caps = {64, 64}}; }

// Two ranks and ten buckets, of which rank 1 gives none until rank 0 gave all: whatever waits for
// what, gradients of rank 0 may not.
void expect_that_gradients_wait_for_nothing(bool arena) {
  ThreadRanks ranks(2);
  std::atomic<bool> has_given_all{false};
  std::vector<Tensor> model;
  for (int i = 0; i < 10; ++i) model.push_back({"t" + std::to_string(i), NORIA_FLOAT32, 64});
  ranks.run([&](int32_t rank) {
    RankReducer mine(ranks.host(rank), a_bucket_each(arena), model);
    expect_ok(mine.reducer.seal());
    expect_ok(mine.reducer.step_begin());
    const int64_t deadline = now_ns() + 20_s;
    while (rank == 1 && !has_given_all.load() && now_ns() < deadline) std::this_thread::yield();
    // Expect: rank 0 came to its end, though nothing could be reduced.
    EXPECT_EQ(has_given_all.load(), rank == 1);
    mine.give_all(test::random_order(model.size(), 1), 0, 1);
    if (rank == 0) has_given_all.store(true);
    expect_ok(mine.reducer.step_end());
    mine.expect_results(0, 2, NORIA_AVG);
  });
}

TEST(Reducer, C08_Gradients_are_taken_while_nothing_is_reduced) {
  expect_that_gradients_wait_for_nothing(true);
}

TEST(Reducer, C14_Copies_are_taken_however_many_buckets_wait) {
  expect_that_gradients_wait_for_nothing(false);
}

TEST(Reducer, C37_Buckets_are_sent_in_the_order_in_which_a_backward_pass_completes_them) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    RankReducer mine(
        ranks.host(rank), a_bucket_each(),
        {{"a", NORIA_FLOAT32, 64}, {"b", NORIA_FLOAT64, 64}, {"c", NORIA_FLOAT32, 64}});
    expect_ok(mine.reducer.seal());
    expect_ok(mine.reducer.step_begin());
    for (const uint32_t id : {2U, 1U, 0U}) expect_ok(mine.give(id, 0));
    expect_ok(mine.reducer.step_end());
    const auto buckets = mine.reducer.last_buckets().value();
    ASSERT_EQ(buckets.size(), 3U);
    for (size_t b = 1; b < 3; ++b) {
      EXPECT_LE(buckets[b - 1].queued_ns, buckets[b].queued_ns);
      EXPECT_LE(buckets[b - 1].start_ns, buckets[b].start_ns);
      EXPECT_LE(buckets[b - 1].end_ns, buckets[b].end_ns);
    }
  });
}

// True once the tensor's memory holds other than this rank's own gradient. Bounded.
bool is_reduced(const RankReducer& mine, uint32_t id, uint64_t step) {
  const std::span<std::byte> view = mine.reducer.view(id).value();
  const Bytes own = test::gradient(mine.rank, step, mine.model[id]);
  const int64_t deadline = now_ns() + 20_s;
  while (test::look_at(view.data(), view.size()) == own) {
    if (now_ns() > deadline) return false;
    std::this_thread::yield();
  }
  return true;
}

TEST(Reducer, C39_A_bucket_is_reduced_while_the_backward_pass_goes_on) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    RankReducer mine(ranks.host(rank), a_bucket_each(),
                     {{"below", NORIA_FLOAT32, 64}, {"above", NORIA_FLOAT32, 64}});
    expect_ok(mine.reducer.seal());
    for (uint64_t step = 0; step < 3; ++step) {
      expect_ok(mine.reducer.step_begin());
      expect_ok(mine.give(1, step));
      // Expect: the result is there, though the last gradient is not.
      ASSERT_TRUE(is_reduced(mine, 1, step));
      ASSERT_TRUE(mine.reducer.result(1, 20_s).is_ok());  // and its end is noted
      expect_ok(mine.give(0, step));
      const auto info = mine.reducer.step_end();
      ASSERT_TRUE(info.is_ok());
      mine.expect_results(step, 2, NORIA_AVG);
      // Expect: and the report says so.
      EXPECT_LE(mine.reducer.last_buckets().value()[0].end_ns, info->last_gradient_ns);
      EXPECT_EQ(info->backlog_ns, 0);
    }
  });
}

// ---- steps that go wrong ------------------------------------------------------------------------

// Every rank runs a bad step, then, after a reset, a good one. Some have views, some copies.
void expect_step_fails_everywhere(int32_t size, noria_status code, const std::string& part,
                                  const std::function<void(RankReducer&)>& bad_step,
                                  uint32_t max_in_flight) {
  ThreadRanks ranks(size);
  std::vector<std::string> texts(static_cast<size_t>(size));
  ranks.run([&](int32_t rank) {
    ReducerConfig config = small_buckets(rank % 2 == 0);
    if (!config.arena) config.max_in_flight = max_in_flight;
    RankReducer mine(ranks.host(rank), config, test::awkward_model(kFloats));
    expect_ok(mine.reducer.seal());
    expect_ok(mine.reducer.step_begin());
    bad_step(mine);
    const auto ended = mine.reducer.step_end();
    expect_failure(ended, code, part);
    texts[static_cast<size_t>(rank)] = ended.is_ok() ? "" : ended.failure().text;

    expect_failure(mine.reducer.step_begin(), NORIA_E_STATE, "step 0 failed");
    expect_failure(mine.reducer.step_end(), code, part);  // the same answer, until the reset
    expect_ok(mine.reducer.reset());
    expect_failure(mine.reducer.step_end(), NORIA_E_STATE, "no step open");
    expect_ok(mine.reducer.step_begin());
    mine.give_all(test::random_order(mine.model.size(), 5), 1, 2);
    expect_ok(mine.reducer.step_end());
    mine.expect_results(1, size, NORIA_AVG);
  });
  for (const std::string& text : texts) EXPECT_EQ(text, texts[0]);
}
void expect_step_fails_everywhere(int32_t size, noria_status code, const std::string& part,
                                  const std::function<void(RankReducer&)>& bad_step) {
  for (const uint32_t max_in_flight : {0U, 1U})
    expect_step_fails_everywhere(size, code, part, bad_step, max_in_flight);
}

TEST(Reducer, A_missing_tensor_fails_the_step_on_all_ranks_by_name) {
  expect_step_fails_everywhere(3, NORIA_E_MISSING,
                               "rank 1 did not give 't7', 't9' (2 of 52 tensors)",
                               [](RankReducer& mine) {
                                 for (const uint32_t id : test::random_order(mine.model.size(), 1))
                                   if (mine.rank != 1 || (id != 7 && id != 9))
                                     expect_ok(mine.give(id, 0));
                               });
}

TEST(Reducer, A_missing_empty_tensor_is_missed_too) {
  expect_step_fails_everywhere(2, NORIA_E_MISSING, "rank 0 did not give 't1' (1 of 52 tensors)",
                               [](RankReducer& mine) {
                                 for (uint32_t id = 0; id < mine.model.size(); ++id)
                                   if (mine.rank != 0 || id != 1) expect_ok(mine.give(id, 0));
                               });
}

TEST(Reducer, A_rank_that_gives_nothing_holds_up_nobody) {
  expect_step_fails_everywhere(2, NORIA_E_MISSING, "and others (52 of 52 tensors)",
                               [](RankReducer& mine) {
                                 if (mine.rank == 1)
                                   for (uint32_t id = 0; id < mine.model.size(); ++id)
                                     expect_ok(mine.give(id, 0));
                               });
}

TEST(Reducer, A_tensor_given_twice_fails_there_and_then_on_all_ranks) {
  expect_step_fails_everywhere(
      2, NORIA_E_DUP_READY, "rank 1 gave too often 't20' (1 of 52 tensors)", [](RankReducer& mine) {
        for (uint32_t id = 0; id < mine.model.size(); ++id) {
          expect_ok(mine.give(id, 0));
          if (mine.rank == 1 && id == 20)
            expect_failure(mine.give(id, 0), NORIA_E_DUP_READY, "'t20'");
        }
      });
}

TEST(Reducer, Complaints_of_several_ranks_are_all_told) {
  expect_step_fails_everywhere(3, NORIA_E_MISSING,
                               "step 0 failed: rank 0 did not give 't3' (1 of 52 tensors); rank 2 "
                               "gave too often 't4' (1 of 52 "
                               "tensors); call",
                               [](RankReducer& mine) {
                                 for (uint32_t id = 0; id < mine.model.size(); ++id) {
                                   if (mine.rank == 0 && id == 3) continue;
                                   expect_ok(mine.give(id, 0));
                                   if (mine.rank == 2 && id == 4)
                                     expect_failure(mine.give(id, 0), NORIA_E_DUP_READY, "'t4'");
                                 }
                               });
}

TEST(Reducer, One_rank_alone_has_the_same_rules) {
  expect_step_fails_everywhere(1, NORIA_E_MISSING, "rank 0 did not give 't0'",
                               [](RankReducer& mine) {
                                 for (uint32_t id = 1; id < mine.model.size(); ++id)
                                   expect_ok(mine.give(id, 0));
                               });
}

TEST(Reducer, A_reset_in_the_midst_aborts_the_step_of_the_others) {
  ThreadRanks ranks(3);
  ranks.run([&](int32_t rank) {
    RankReducer mine(ranks.host(rank), small_buckets(true), test::awkward_model(kFloats));
    expect_ok(mine.reducer.seal());
    expect_ok(mine.reducer.step_begin());
    expect_ok(mine.give(5, 0));
    if (rank == 1) {
      expect_ok(mine.reducer.reset());
    } else {
      for (uint32_t id = 0; id < mine.model.size(); ++id)
        if (id != 5) expect_ok(mine.give(id, 0));
      expect_failure(mine.reducer.step_end(), NORIA_E_ABORTED,
                     "rank 1 was reset in the midst of the step");
      expect_ok(mine.reducer.reset());
    }
    // Expect: all are between steps again.
    expect_ok(mine.reducer.step_begin());
    mine.give_all(test::random_order(mine.model.size(), 9), 2, 1);
    const auto ended = mine.reducer.step_end();
    expect_ok(ended);
    EXPECT_EQ(ended->step, 1u);
    mine.expect_results(2, 3, NORIA_AVG);
  });
}

TEST(Reducer, A_failed_communicator_fails_the_step_and_stays_failed) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    RankReducer mine(ranks.host(rank), small_buckets(false), test::awkward_model(kFloats));
    expect_ok(mine.reducer.seal());
    expect_ok(mine.reducer.step_begin());
    expect_ok(mine.give(0, 0));
    expect_ok(ranks.host(rank).control->all_gather("all have begun", "", kNever));
    if (rank == 1) ranks.host(1).engine->fail({NORIA_E_PEER, "rank 7 died"});
    expect_failure(mine.reducer.step_end(), NORIA_E_PEER, "rank 7 died");
    expect_failure(mine.reducer.reset(), NORIA_E_PEER, "rank 7 died");
    expect_failure(mine.reducer.step_begin(), NORIA_E_PEER, "rank 7 died");
  });
}

TEST(Reducer, A_communicator_that_failed_between_steps_opens_none) {
  ThreadRanks ranks(1);
  RankReducer mine(ranks.host(0), small_buckets(true), test::awkward_model(kFloats));
  expect_ok(mine.reducer.seal());
  ranks.host(0).engine->fail({NORIA_E_ABORTED, "enough"});
  expect_failure(mine.reducer.step_begin(), NORIA_E_ABORTED, "enough");
  expect_failure(mine.reducer.reset(), NORIA_E_ABORTED, "enough");
}

TEST(Reducer, Destroyed_in_the_midst_of_a_step_it_fails_the_others_at_once) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    RankReducer mine(ranks.host(rank), small_buckets(true), test::awkward_model(kFloats));
    expect_ok(mine.reducer.seal());
    expect_ok(mine.reducer.step_begin());
    expect_ok(ranks.host(rank).control->all_gather("all have begun", "", kNever));
    if (rank == 1) return;
    expect_failure(mine.reducer.step_end(), NORIA_E_ABORTED,
                   "rank 1 destroyed its reducer in the midst of step 0");
  });
}

TEST(Reducer, Destroyed_in_the_midst_of_a_step_alone_it_harms_nobody) {
  ThreadRanks ranks(1);
  {
    RankReducer gone(ranks.host(0), small_buckets(true), test::awkward_model(kFloats));
    expect_ok(gone.reducer.seal());
    expect_ok(gone.reducer.step_begin());
  }
  RankReducer next(ranks.host(0), small_buckets(true), test::awkward_model(kFloats));
  expect_ok(next.reducer.seal());
  expect_ok(next.reducer.step_begin());
}

// ---- calls at the wrong time, with the wrong arguments ------------------------------------------

TEST(Reducer, A_plans_file_that_cannot_be_read_or_written_is_told_with_the_cause) {
  ThreadRanks ranks(1);
  Reducer reducer(ranks.host(0), small_buckets(true));
  EXPECT_EQ(reducer.add("a", NORIA_FLOAT32, 4).value(), 0u);
  expect_failure(reducer.load_plan("/nowhere/plan"), NORIA_E_ARG,
                 "cannot open the plan /nowhere/plan: No such file or directory");
  expect_failure(reducer.load_plan("/"), NORIA_E_ARG, "cannot read the plan /: Is a directory");

  // Expect: none of them is in the way of a plan of its own.
  expect_ok(reducer.seal());
  expect_failure(reducer.save_plan("/nowhere/plan"), NORIA_E_ARG,
                 "cannot write the plan /nowhere/plan: No such file or directory");
  expect_failure(reducer.save_plan("/dev/full"), NORIA_E_ARG,
                 "cannot write the plan /dev/full: No space left on device");
}

TEST(Reducer, Calls_out_of_order_are_refused_with_what_to_do) {
  ThreadRanks ranks(1);
  Reducer reducer(ranks.host(0), small_buckets(true));
  EXPECT_EQ(reducer.add("a", NORIA_FLOAT32, 4).value(), 0u);

  // Before seal().
  expect_failure(reducer.step_begin(), NORIA_E_STATE, "comes after noria_reducer_seal()");
  expect_failure(reducer.grad_ready(0, nullptr), NORIA_E_STATE, "no step open");
  expect_failure(reducer.step_end(), NORIA_E_STATE, "no step open");
  expect_failure(reducer.reset(), NORIA_E_STATE, "comes after noria_reducer_seal()");
  expect_failure(reducer.view(0), NORIA_E_STATE, "after noria_reducer_seal()");
  expect_failure(reducer.last_buckets(), NORIA_E_STATE, "after noria_reducer_seal()");
  expect_failure(reducer.save_plan("plan"), NORIA_E_STATE, "comes after noria_reducer_seal()");

  // Between steps.
  expect_ok(reducer.seal());
  expect_failure(reducer.load_plan("plan"), NORIA_E_STATE, "comes before noria_reducer_seal()");
  expect_failure(reducer.set_hook(NORIA_HOOK_AFTER, {}), NORIA_E_STATE,
                 "comes before noria_reducer_seal()");
  expect_failure(reducer.seal(), NORIA_E_STATE, "called before");
  expect_failure(reducer.add("b", NORIA_FLOAT32, 4), NORIA_E_STATE, "'b' comes after");
  expect_failure(reducer.add("a", NORIA_FLOAT16, 9), NORIA_E_STATE,
                 "was sealed as 'a', float32, 4 elements, and a model that changes needs");
  expect_failure(reducer.grad_ready(0, nullptr), NORIA_E_STATE, "no step open");
  expect_failure(reducer.step_end(), NORIA_E_STATE, "no step open");
  expect_ok(reducer.reset());

  // In a step.
  expect_ok(reducer.step_begin());
  expect_failure(reducer.step_begin(), NORIA_E_STATE, "step 0 is open");
  expect_ok(reducer.grad_ready(0, nullptr));
  expect_ok(reducer.step_end());
}

TEST(Reducer, Wrong_ids_and_pointers_are_refused_and_do_not_count_as_given) {
  ThreadRanks ranks(1);
  RankReducer arena(ranks.host(0), small_buckets(true), {{"a", NORIA_FLOAT32, 4}});
  expect_ok(arena.reducer.seal());
  expect_ok(arena.reducer.step_begin());
  float elsewhere[4];
  expect_failure(arena.reducer.grad_ready(0, elsewhere), NORIA_E_ARG, "noria_reducer_view()");
  expect_failure(arena.reducer.grad_ready(1, nullptr), NORIA_E_ARG, "no tensor has id 1");
  expect_failure(arena.reducer.view(1), NORIA_E_ARG, "no tensor has id 1");
  expect_ok(arena.give(0, 0));
  expect_ok(arena.reducer.step_end());

  RankReducer copies(ranks.host(0), small_buckets(false),
                     {{"a", NORIA_FLOAT32, 4}, {"none", NORIA_FLOAT32, 0}});
  expect_ok(copies.reducer.seal());
  expect_failure(copies.reducer.view(0), NORIA_E_STATE, "set arena to 1");
  expect_ok(copies.reducer.step_begin());
  expect_failure(copies.reducer.grad_ready(0, nullptr), NORIA_E_ARG, "NULL");
  expect_ok(copies.reducer.grad_ready(1, nullptr));  // empty: there is no gradient to point to
  expect_ok(copies.give(0, 0));
  expect_ok(copies.reducer.step_end());
}

TEST(Reducer, Averages_of_integers_are_refused_at_seal_on_all_ranks) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    RankReducer mine(ranks.host(rank), small_buckets(true),
                     {{"a", NORIA_FLOAT32, 4}, {"count", NORIA_INT64, 1}});
    expect_failure(mine.reducer.seal(), NORIA_E_ARG, "tensor 'count', int64, 1 element");
  });
}

TEST(Reducer, C25_Ranks_with_other_tensors_or_other_policies_get_one_error_and_nobody_hangs) {
  for (const bool is_policy : {false, true}) {
    ThreadRanks ranks(3);
    ranks.run([&](int32_t rank) {
      std::vector<Tensor> model{{"a", NORIA_FLOAT32, 4}, {"b", NORIA_FLOAT32, 8}};
      ReducerConfig config = small_buckets(true);
      if (rank == 2 && is_policy) config.unused = NORIA_UNUSED_KEEP;
      if (rank == 2 && !is_policy) model.pop_back();  // ignored there, say
      RankReducer mine(ranks.host(rank), config, model);
      expect_failure(mine.reducer.seal(), NORIA_E_MISMATCH,
                     is_policy
                         ? "unused: 0 on ranks 0, 1; 2 on rank 2"
                         : "tensor 1: 'b', float32, 8 elements on ranks 0, 1; none on rank 2");
    });
  }
}

TEST(Reducer, C26_A_different_shape_is_told_alike_on_all_ranks_at_seal) {
  ThreadRanks ranks(3);
  ranks.run([&](int32_t rank) {
    RankReducer mine(ranks.host(rank), small_buckets(rank == 1),
                     {{"a", NORIA_FLOAT32, 4}, {"b", NORIA_FLOAT32, rank == 2 ? 9u : 8u}});
    expect_failure(mine.reducer.seal(), NORIA_E_MISMATCH,
                   "tensor 1: 'b', float32, 8 elements on ranks 0, 1; 'b', float32, 9 elements on "
                   "rank 2");
    expect_failure(mine.reducer.step_begin(), NORIA_E_STATE, "comes after noria_reducer_seal()");
  });
}

TEST(Reducer, Without_memory_for_the_gradients_it_stays_unsealed_on_all_ranks) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    RankReducer mine(ranks.host(rank), small_buckets(true), {{"a", NORIA_FLOAT32, 1ULL << 44}});
    for (int attempt = 0; attempt < 2; ++attempt) {
      expect_failure(mine.reducer.seal(), NORIA_E_NOMEM, "bytes for the gradients");
      expect_failure(mine.reducer.seal(), NORIA_E_NOMEM, "raise the limits of memory");
    }
    // Expect: as before the seal.
    EXPECT_EQ(mine.reducer.add("b", NORIA_FLOAT32, 4).value(), 1u);
    expect_failure(mine.reducer.step_begin(), NORIA_E_STATE, "comes after noria_reducer_seal()");
  });
}

TEST(Reducer, An_arena_beside_copies_is_no_difference) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    RankReducer mine(ranks.host(rank), small_buckets(rank == 0), test::awkward_model(kFloats));
    expect_ok(mine.reducer.seal());
    expect_ok(mine.reducer.step_begin());
    mine.give_all(test::random_order(mine.model.size(), 1), 0, 2);
    expect_ok(mine.reducer.step_end());
    mine.expect_results(0, 2, NORIA_AVG);
  });
}

}  // namespace
}  // namespace noria::bucketing
