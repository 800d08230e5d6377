// Functions of the caller's that see each bucket, before it is sent and after it is reduced.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <map>
#include <mutex>

#include "tests/support/rank_reducer.hpp"
#include "tests/support/thread_ranks.hpp"

namespace noria::bucketing {
namespace {

using test::expect_failure;
using test::expect_ok;
using test::RankReducer;
using test::ThreadRanks;

constexpr uint32_t kA = 0, kB = 1, kC = 2, kD = 3, kEmpty = 4;

// In reverse of registration: the empty one, D and C share the first bucket, B is the next, A the
// last.
std::vector<Tensor> five() {
  return {{"a", NORIA_FLOAT32, 3'000},
          {"b", NORIA_FLOAT32, 70'000},
          {"c", NORIA_FLOAT32, 500},
          {"d", NORIA_FLOAT32, 600},
          {"empty", NORIA_FLOAT32, 0}};
}

// A hook that is a lambda, and what it was shown.
class Hook {
 public:
  using Body = std::function<int32_t(const noria_hook_bucket&, char* why, size_t capacity)>;
  explicit Hook(Body body = nullptr) : body_(std::move(body)) {}

  BucketHook hook() { return {.function = &call, .user = this}; }
  // How often each bucket was shown since the last call.
  std::map<uint32_t, int> take_counts() {
    const std::lock_guard lock(mutex_);
    return std::exchange(counts_, {});
  }

 private:
  static int32_t call(const noria_hook_bucket* bucket, char* why, size_t capacity, void* user) {
    Hook& mine = *static_cast<Hook*>(user);
    {
      const std::lock_guard lock(mine.mutex_);
      ++mine.counts_[bucket->bucket];
    }
    return mine.body_ != nullptr ? mine.body_(*bucket, why, capacity) : 0;
  }

  const Body body_;
  std::mutex mutex_;
  std::map<uint32_t, int> counts_;
};

int32_t scale(const noria_hook_bucket& bucket, float by) {
  auto* values = static_cast<float*>(bucket.data);
  std::for_each(values, values + bucket.bytes / sizeof(float), [&](float& v) { v *= by; });
  return 0;
}

int32_t refuse_with(int32_t code, const char* text, char* why, size_t capacity) {
  std::snprintf(why, capacity, "%s", text);
  return code;
}

using Counts = std::map<uint32_t, int>;
const Counts kEachOnce{{0, 1}, {1, 1}, {2, 1}};

struct Way {
  bool arena = false;
  uint32_t max_in_flight = 0;
};
constexpr Way kWays[]{{true, 0}, {false, 0}, {false, 1}};

ReducerConfig config_of(const Way& way, Order order = Order::reverse) {
  return {.arena = way.arena,
          .caps = {.first_bucket_bytes = 4'400, .bucket_bytes = 100'000},
          .order = order,
          .max_in_flight = way.max_in_flight};
}

// body(rank) in arena and in copy mode, with a copy of each bucket and of one at a time, with a
// plan that stays and with one that is given up.
void run_all_ways(int32_t size, const std::function<void(RankReducer&)>& body) {
  for (const Way& way : kWays)
    for (const Order order : {Order::reverse, Order::arrival}) {
      ThreadRanks ranks(size);
      ranks.run([&](int32_t rank) {
        RankReducer reducer(ranks.host(rank), config_of(way, order), five());
        body(reducer);
      });
    }
}

void set(RankReducer& mine, noria_hook_moment moment, Hook& hook) {
  expect_ok(mine.reducer.set_hook(moment, hook.hook()));
}

void fire_all(RankReducer& mine, float value) {
  for (const uint32_t id : {kEmpty, kD, kB, kC, kA}) expect_ok(mine.fire(id, value));
}

TEST(Hooks, Change_what_is_reduced_and_what_comes_of_it) {
  for (const int32_t size : {1, 3})
    run_all_ways(size, [size](RankReducer& mine) {
      const auto factor = static_cast<float>(mine.rank + 1);
      Hook before([&](const noria_hook_bucket& b, char*, size_t) { return scale(b, factor); });
      Hook after([](const noria_hook_bucket& b, char*, size_t) { return scale(b, 10); });
      set(mine, NORIA_HOOK_BEFORE, before);
      set(mine, NORIA_HOOK_AFTER, after);
      expect_ok(mine.reducer.seal());
      for (uint64_t step = 0; step < 3; ++step) {
        expect_ok(mine.reducer.step_begin());
        fire_all(mine, 6);
        expect_ok(mine.reducer.step_end());
        // Expect: the average of 6, and of 6, 12 and 18; then ten times that.
        const float wanted = size == 1 ? 60 : 120;
        for (const uint32_t id : {kA, kB, kC, kD}) EXPECT_EQ(mine.value(id), wanted);
        Counts each_once;
        for (uint32_t b = 0; b < mine.reducer.last_step()->buckets; ++b) each_once[b] = 1;
        EXPECT_EQ(before.take_counts(), each_once);
        EXPECT_EQ(after.take_counts(), each_once);
      }
    });
}

TEST(Hooks, Show_where_each_tensor_lies_also_a_split_one) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    ReducerConfig config = config_of({.arena = true});
    config.plan = PlanKind::strict;
    RankReducer mine(ranks.host(rank), config, five());
    std::map<uint32_t, uint64_t> elements;  // of each tensor, in all buckets
    Hook before([&](const noria_hook_bucket& b, char*, size_t) {
      EXPECT_EQ(b.struct_size, sizeof(noria_hook_bucket));
      EXPECT_EQ(b.dtype, NORIA_FLOAT32);
      EXPECT_EQ(b.step, 0U);
      uint64_t bytes = 0;
      for (uint32_t i = 0; i < b.tensors; ++i) {
        const uint32_t id = b.tensor_ids[i];
        EXPECT_EQ(b.tensor_offsets[i], bytes);
        EXPECT_EQ(b.tensor_firsts[i], elements[id]);
        EXPECT_EQ(b.offset + bytes, mine.reducer.offset_of(id).value() + 4 * elements[id]);
        // The tensor's own value stands at its place.
        EXPECT_EQ(*reinterpret_cast<float*>(static_cast<char*>(b.data) + bytes),
                  static_cast<float>(id + 1));
        elements[id] += b.tensor_bytes[i] / sizeof(float);
        bytes += b.tensor_bytes[i];
      }
      EXPECT_EQ(bytes, b.bytes);
      return 0;
    });
    set(mine, NORIA_HOOK_BEFORE, before);
    expect_ok(mine.reducer.seal());
    expect_ok(mine.reducer.step_begin());
    for (const uint32_t id : {kEmpty, kD, kC, kB, kA})
      expect_ok(mine.fire(id, static_cast<float>(id + 1)));
    expect_ok(mine.reducer.step_end());
    EXPECT_GT(before.take_counts().size(), 3U);
    for (const uint32_t id : {kA, kB, kC, kD}) EXPECT_EQ(elements[id], mine.model[id].numel);
    EXPECT_EQ(elements.count(kEmpty), 0U);
  });
}

TEST(Hooks, A_bucket_is_whole_when_it_is_shown_whoever_gives_what) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    std::vector<Tensor> many;
    for (int i = 0; i < 40; ++i) many.push_back({"t" + std::to_string(i), NORIA_FLOAT32, 20'000});
    RankReducer mine(ranks.host(rank), test::small_buckets(true), many);
    Hook before([](const noria_hook_bucket& b, char*, size_t) {
      const auto* values = static_cast<const float*>(b.data);
      const auto count = std::count(values, values + b.bytes / sizeof(float), 3.0F);
      EXPECT_EQ(static_cast<uint64_t>(count), b.bytes / sizeof(float));
      return 0;
    });
    set(mine, NORIA_HOOK_BEFORE, before);
    expect_ok(mine.reducer.seal());
    for (int step = 0; step < 3; ++step) {
      expect_ok(mine.reducer.step_begin());
      std::vector<std::thread> givers;
      for (uint32_t t = 0; t < 4; ++t)
        givers.emplace_back([&, t] {
          for (uint32_t id = t; id < mine.model.size(); id += 4) expect_ok(mine.fire(id, 3));
        });
      for (std::thread& giver : givers) giver.join();
      expect_ok(mine.reducer.step_end());
      for (const auto& [bucket, times] : before.take_counts()) EXPECT_EQ(times, 1) << bucket;
      EXPECT_EQ(mine.value(0), 3);
    }
  });
}

// ---- failures -----------------------------------------------------------------------------------

TEST(Hooks, One_that_fails_on_one_rank_fails_the_step_on_all_and_they_go_on) {
  for (const noria_hook_moment moment : {NORIA_HOOK_BEFORE, NORIA_HOOK_AFTER})
    run_all_ways(3, [&](RankReducer& mine) {
      std::atomic<bool> is_bad{true};
      Hook hook([&](const noria_hook_bucket& b, char* why, size_t capacity) {
        if (mine.rank != 1 || b.bucket == 0 || !is_bad) return 0;
        return refuse_with(-42, "the scale is\noff", why, capacity);
      });
      set(mine, moment, hook);
      expect_ok(mine.reducer.seal());
      expect_ok(mine.reducer.step_begin());
      fire_all(mine, 1);
      expect_failure(
          mine.reducer.step_end(), NORIA_E_HOOK,
          std::string("step 0 failed: rank 1 had its hook fail for bucket 1 ") +
              (moment == NORIA_HOOK_BEFORE ? "before it was sent" : "after it was reduced") +
              ", with code -42: 'the scale is?off'; mend");
      expect_failure(mine.reducer.step_begin(), NORIA_E_STATE, "noria_reducer_reset()");
      is_bad = false;
      expect_ok(mine.reducer.reset());
      expect_ok(mine.reducer.step_begin());
      fire_all(mine, 5);
      expect_ok(mine.reducer.step_end());
      EXPECT_EQ(mine.value(kB), 5);
    });
}

TEST(Hooks, Of_both_moments_on_several_ranks_are_all_told) {
  run_all_ways(2, [](RankReducer& mine) {
    const noria_hook_moment mines = mine.rank == 0 ? NORIA_HOOK_BEFORE : NORIA_HOOK_AFTER;
    const auto body = [&](noria_hook_moment moment) {
      return [moment, mines](const noria_hook_bucket&, char* why, size_t capacity) {
        // A text as long as its room, without an end.
        std::fill_n(why, capacity, 'x');
        return moment == mines ? 1 : 0;
      };
    };
    Hook before(body(NORIA_HOOK_BEFORE)), after(body(NORIA_HOOK_AFTER));
    set(mine, NORIA_HOOK_BEFORE, before);
    set(mine, NORIA_HOOK_AFTER, after);
    expect_ok(mine.reducer.seal());
    expect_ok(mine.reducer.step_begin());
    fire_all(mine, 1);
    const auto ended = mine.reducer.step_end();
    expect_failure(ended, NORIA_E_HOOK,
                   "rank 0 had its hook fail for bucket 0 before it was sent, with code 1: 'xxx");
    expect_failure(ended, NORIA_E_HOOK,
                   "rank 1 had its hook fail for bucket 0 after it was reduced, with code 1: 'xxx");
    expect_ok(mine.reducer.reset());
  });
}

TEST(Hooks, A_missing_tensor_is_graver_and_results_are_not_shown_where_it_is_known) {
  run_all_ways(2, [](RankReducer& mine) {
    Hook before([](const noria_hook_bucket&, char*, size_t) { return 5; });
    Hook after;
    set(mine, NORIA_HOOK_BEFORE, before);
    set(mine, NORIA_HOOK_AFTER, after);
    expect_ok(mine.reducer.seal());
    expect_ok(mine.reducer.step_begin());
    for (const uint32_t id : {kEmpty, kD, kC, kA}) expect_ok(mine.fire(id, 1));
    if (mine.rank == 0) expect_ok(mine.fire(kB, 1));
    const auto ended = mine.reducer.step_end();
    expect_failure(ended, NORIA_E_MISSING, "rank 1 did not give 'b'");
    expect_failure(ended, NORIA_E_MISSING, "rank 0 had its hook fail");
    EXPECT_EQ(after.take_counts(), Counts{});
    // Reset in the midst of a step: hooks run, and say nothing of it.
    expect_ok(mine.reducer.reset());
    expect_ok(mine.reducer.step_begin());
    expect_ok(mine.reducer.reset());
  });
}

TEST(Hooks, See_nothing_of_passes_that_only_accumulate_and_all_of_the_last) {
  for (const bool is_static : {false, true}) {
    ThreadRanks ranks(2);
    ranks.run([&](int32_t rank) {
      ReducerConfig config = config_of({.arena = true});
      config.static_graph = is_static;
      config.unused = NORIA_UNUSED_ZERO;
      RankReducer mine(ranks.host(rank), config, five());
      Hook before, after;
      set(mine, NORIA_HOOK_BEFORE, before);
      set(mine, NORIA_HOOK_AFTER, after);
      expect_ok(mine.reducer.seal());
      for (uint64_t step = 0; step < 2; ++step) {
        expect_ok(mine.reducer.step_begin(true));
        for (const uint32_t id : {kEmpty, kD, kC, kA}) expect_ok(mine.fire(id, 1));
        expect_ok(mine.reducer.step_end());
        EXPECT_EQ(before.take_counts(), Counts{});
        expect_ok(mine.reducer.step_begin());
        for (const uint32_t id : {kEmpty, kD, kC, kA}) expect_ok(mine.fire(id, 2));
        expect_ok(mine.reducer.step_end());
        EXPECT_EQ(before.take_counts(), kEachOnce);
        EXPECT_EQ(after.take_counts(), kEachOnce);
      }
    });
  }
}

TEST(Hooks, Sums_that_overflowed_are_found_before_a_hook_could_hide_them) {
  for (const Way& way : kWays) {
    ThreadRanks ranks(2);
    ranks.run([&](int32_t rank) {
      ReducerConfig config = config_of(way);
      config.is_nonfinite_error = true;
      RankReducer mine(ranks.host(rank), config, five());
      // What all gave is finite, and what one rank's hook makes of it is not.
      Hook before([rank](const noria_hook_bucket& b, char*, size_t) {
        return scale(b, rank == 0 ? std::numeric_limits<float>::infinity() : 1);
      });
      Hook after([](const noria_hook_bucket& b, char*, size_t) {
        std::fill_n(static_cast<float*>(b.data), b.bytes / sizeof(float), 0.0F);
        return 0;
      });
      set(mine, NORIA_HOOK_BEFORE, before);
      set(mine, NORIA_HOOK_AFTER, after);
      expect_ok(mine.reducer.seal());
      expect_ok(mine.reducer.step_begin());
      fire_all(mine, 1);
      expect_failure(mine.reducer.step_end(), NORIA_E_NONFINITE, "the sums in bucket 0 of 'empty'");
      expect_ok(mine.reducer.reset());
    });
  }
}

// ---- calls --------------------------------------------------------------------------------------

TEST(Hooks, Results_are_not_given_before_a_hook_has_seen_them) {
  run_all_ways(2, [](RankReducer& mine) {
    Hook after([](const noria_hook_bucket& b, char*, size_t) { return scale(b, 2); });
    set(mine, NORIA_HOOK_AFTER, after);
    expect_ok(mine.reducer.seal());
    expect_ok(mine.reducer.step_begin());
    fire_all(mine, 1);
    expect_failure(mine.reducer.result(kD, 0), NORIA_E_STATE, "a hook sees results first");
    expect_ok(mine.reducer.step_end());
    EXPECT_EQ(mine.told_value(kD), 2);
  });
}

TEST(Hooks, One_before_sending_holds_up_no_result) {
  run_all_ways(2, [](RankReducer& mine) {
    Hook before([](const noria_hook_bucket& b, char*, size_t) { return scale(b, 2); });
    set(mine, NORIA_HOOK_BEFORE, before);
    expect_ok(mine.reducer.seal());
    expect_ok(mine.reducer.step_begin());
    for (const uint32_t id : {kEmpty, kD, kC}) expect_ok(mine.fire(id, 1));
    EXPECT_EQ(mine.told_value(kD), 2);
    for (const uint32_t id : {kA, kB}) expect_ok(mine.fire(id, 1));
    expect_ok(mine.reducer.step_end());
  });
}

TEST(Hooks, Cannot_end_the_step_that_waits_for_them) {
  for (const noria_hook_moment moment : {NORIA_HOOK_BEFORE, NORIA_HOOK_AFTER})
    run_all_ways(2, [moment](RankReducer& mine) {
      Hook hook([&](const noria_hook_bucket&, char*, size_t) {
        expect_failure(mine.reducer.step_end(), NORIA_E_STATE, "by a hook of this reducer");
        expect_failure(mine.reducer.reset(), NORIA_E_STATE, "by a hook of this reducer");
        return 0;
      });
      set(mine, moment, hook);
      expect_ok(mine.reducer.seal());
      expect_ok(mine.reducer.step_begin());
      fire_all(mine, 3);
      // Expect: whoever gave the gradients ends it.
      expect_ok(mine.reducer.step_end());
      EXPECT_EQ(mine.value(kB), 3);
    });
}

TEST(Hooks, Are_set_before_seal_alike_on_all_ranks_and_may_be_taken_back) {
  ThreadRanks ranks(2);
  ranks.run([&](int32_t rank) {
    Hook hook;
    RankReducer unlike(ranks.host(rank), config_of({.arena = true}), five());
    if (rank == 1) set(unlike, NORIA_HOOK_AFTER, hook);
    if (rank == 0) set(unlike, NORIA_HOOK_BEFORE, hook);
    expect_failure(unlike.reducer.seal(), NORIA_E_MISMATCH,
                   "the ranks differ in hooks: before on rank 0; after on rank 1");

    RankReducer mine(ranks.host(rank), config_of({.arena = true}), five());
    set(mine, NORIA_HOOK_AFTER, hook);
    expect_ok(mine.reducer.set_hook(NORIA_HOOK_AFTER, {}));
    expect_ok(mine.reducer.seal());
    expect_failure(mine.reducer.set_hook(NORIA_HOOK_AFTER, hook.hook()), NORIA_E_STATE,
                   "before noria_reducer_seal()");
    expect_ok(mine.reducer.step_begin());
    fire_all(mine, 1);
    expect_ok(mine.reducer.step_end());
    EXPECT_EQ(hook.take_counts(), Counts{});
  });
}

TEST(Hooks, What_a_rank_is_in_is_told_to_whoever_waits_for_it) {
  ThreadRanks ranks(1);
  RankReducer mine(ranks.host(0), config_of({.arena = true}), five());
  std::string told;
  Hook before([&](const noria_hook_bucket& b, char*, size_t) {
    if (b.bucket == 1) told = ranks.host(0).open_steps->owes().value();
    return 0;
  });
  set(mine, NORIA_HOOK_BEFORE, before);
  expect_ok(mine.reducer.seal());
  EXPECT_EQ(ranks.host(0).open_steps->owes(), std::nullopt);
  expect_ok(mine.reducer.step_begin());
  expect_ok(mine.fire(kD, 1));
  EXPECT_EQ(ranks.host(0).open_steps->owes(),
            "has not given 'a', 'b', 'c', 'empty' (4 of 5 tensors)");
  for (const uint32_t id : {kEmpty, kC, kB, kA}) expect_ok(mine.fire(id, 1));
  EXPECT_EQ(told, "is in its hook for bucket 1 before it was sent");
  EXPECT_EQ(ranks.host(0).open_steps->owes(), "has not called noria_step_end()");
  expect_ok(mine.reducer.step_end());
}

}  // namespace
}  // namespace noria::bucketing
