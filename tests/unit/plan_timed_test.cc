#include "bucketing/plan_timed.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "bucketing/arrival.hpp"
#include "bucketing/kernels.hpp"
#include "tests/support/model_shapes.hpp"

namespace noria::bucketing {
namespace {

using Times = std::vector<uint32_t>;

std::vector<PlanTensor> floats(size_t tensors, uint64_t numel) {
  return std::vector<PlanTensor>(tensors, PlanTensor{numel, NORIA_FLOAT32});
}

double end_of(const Plan& plan, const Times& ready, const LinkCurve& curve) {
  return modelled_end_us(plan, ready, curve);
}

std::vector<size_t> tensors_of_buckets(const Plan& plan) {
  std::vector<size_t> counts;
  for (const Bucket& bucket : plan.buckets) counts.push_back(bucket.tensors.size());
  return counts;
}

TEST(PlanTimed, The_model_sends_each_bucket_when_it_is_full_and_the_link_is_free) {
  Plan plan;
  plan.buckets = {{.bytes = 1000, .tensors = {0}}, {.bytes = 500, .tensors = {1, 2}}};
  const LinkCurve curve{.alpha_us = 5, .bytes_per_us = 100};
  // Until 25, for 5 + 10; the second is full at 30 and must not wait.
  EXPECT_DOUBLE_EQ(end_of(plan, {10, 30, 20}, curve), 40);
  // The second is full at 12 and waits until 25.
  EXPECT_DOUBLE_EQ(end_of(plan, {10, 12, 11}, curve), 35);
}

TEST(PlanTimed, The_model_counts_bytes_as_they_travel) {
  Plan plan;
  plan.buckets = {{.dtype = NORIA_FLOAT32, .bytes = 1000, .tensors = {0}},
                  {.dtype = NORIA_FLOAT64, .bytes = 500, .tensors = {1}}};
  const LinkCurve curve{.alpha_us = 5, .bytes_per_us = 100};
  // Expect: 5 + 5 for 500 bytes of bfloat16, and 5 + 5 for 500 that travel as they are.
  EXPECT_DOUBLE_EQ(modelled_end_us(plan, Times{10, 12}, curve, NORIA_BFLOAT16), 30);
}

TEST(PlanTimed, C38_What_is_ready_far_apart_is_not_fused) {
  // Three together, a long pause, two together; the fixed cost is small against the pause.
  const Plan plan =
      plan_by_times(floats(5, 250), reverse_registration(5), {}, Times{900, 901, 12, 11, 10},
                    {.alpha_us = 20, .bytes_per_us = 1000});
  EXPECT_EQ(tensors_of_buckets(plan), (std::vector<size_t>{3, 2}));
}

TEST(PlanTimed, C30_Buckets_are_as_many_as_the_link_asks_for_and_no_more) {
  // A fixed cost that nothing outweighs.  Expect: one bucket.
  Times ready(100);
  std::iota(ready.rbegin(), ready.rend(), 0U);
  EXPECT_EQ(plan_by_times(floats(100, 10), reverse_registration(100), {}, ready,
                          {.alpha_us = 1000, .bytes_per_us = 1000})
                .buckets.size(),
            1u);
  // Everything is ready at once.  Expect: the same.
  EXPECT_EQ(plan_by_times(floats(100, 10), reverse_registration(100), {}, Times(100, 7),
                          {.alpha_us = 1, .bytes_per_us = 1000})
                .buckets.size(),
            1u);
  // No fixed cost, and the last tensor alone decides.  Expect: it is alone, the rest is together.
  const Plan two = plan_by_times(floats(100, 10), reverse_registration(100), {},
                                 [&] {
                                   Times last = ready;
                                   last[0] = 5000;
                                   return last;
                                 }(),
                                 {.alpha_us = 0, .bytes_per_us = 1000});
  EXPECT_EQ(tensors_of_buckets(two), (std::vector<size_t>{99, 1}));
}

struct Pass {
  std::vector<PlanTensor> tensors;
  std::vector<uint32_t> fill_order;
  Times ready;
  LinkCurve curve;
};

Pass random_pass(std::mt19937_64& random, size_t most, bool one_dtype) {
  Pass pass{.tensors = std::vector<PlanTensor>(1 + random() % most)};
  for (PlanTensor& tensor : pass.tensors)
    tensor = {random() % 5000, one_dtype || random() % 3 != 0 ? NORIA_FLOAT32 : NORIA_BFLOAT16};
  pass.fill_order = reverse_registration(pass.tensors.size());
  for (size_t i = 0; i < pass.tensors.size(); ++i)
    pass.ready.push_back(static_cast<uint32_t>(random() % 300));
  // Mostly in fill order, as a backward pass is.
  if (random() % 4 != 0) std::sort(pass.ready.rbegin(), pass.ready.rend());
  pass.curve = {.alpha_us = static_cast<double>(random() % 50),
                .bytes_per_us = static_cast<double>(50 + random() % 1000)};
  return pass;
}

Plan planned(const Pass& pass, const PlanCaps& caps) {
  return plan_by_times(pass.tensors, pass.fill_order, caps, pass.ready, pass.curve);
}

TEST(PlanTimed, No_set_of_edges_ends_earlier) {
  std::mt19937_64 random(11);
  for (unsigned round = 0; round < 300; ++round) {
    const Pass pass = random_pass(random, 9, true);
    const size_t gaps = pass.tensors.size() - 1;
    double best = 1e300;
    for (uint32_t edges = 0; edges < (1U << gaps); ++edges) {
      Plan plan;
      plan.buckets.emplace_back();
      for (size_t i = 0; i < pass.fill_order.size(); ++i) {
        const uint32_t index = pass.fill_order[i];
        plan.buckets.back().tensors.push_back(index);
        plan.buckets.back().bytes += pass.tensors[index].numel * 4;
        if (i < gaps && (edges >> i & 1) != 0) plan.buckets.emplace_back();
      }
      best = std::min(best, end_of(plan, pass.ready, pass.curve));
    }
    EXPECT_LE(end_of(planned(pass, {}), pass.ready, pass.curve), best * (1 + 1e-9) + 1e-6);
  }
}

TEST(PlanTimed, Is_never_worse_than_DDPs_plan_in_its_own_model) {
  std::mt19937_64 random(12);
  for (unsigned round = 0; round < 2000; ++round) {
    const Pass pass = random_pass(random, 60, false);
    const PlanCaps caps{.first_bucket_bytes = 1 + random() % 20'000,
                        .bucket_bytes = 1 + random() % 60'000};
    Plan ddp = plan_buckets(PlanKind::ddp, pass.tensors, pass.fill_order, caps);
    const double as_closed = end_of(ddp, pass.ready, pass.curve);
    EXPECT_LE(end_of(planned(pass, caps), pass.ready, pass.curve), as_closed + 1e-6);
    launch_in_order(ddp, pass.ready);
    EXPECT_LE(end_of(ddp, pass.ready, pass.curve), as_closed + 1e-6);
  }
}

TEST(PlanTimed, Tensors_stay_where_they_are_whatever_the_edges) {
  std::mt19937_64 random(13);
  for (unsigned round = 0; round < 500; ++round) {
    const Pass pass = random_pass(random, 60, false);
    const Plan before = plan_buckets(PlanKind::planned, pass.tensors, pass.fill_order,
                                     {.first_bucket_bytes = 999, .bucket_bytes = 7777});
    const Plan after = planned(pass, {});
    EXPECT_EQ(after.offsets, before.offsets);
    EXPECT_EQ(after.arena_bytes, before.arena_bytes);
    uint64_t bytes = 0;
    for (const Bucket& bucket : after.buckets) {
      uint64_t next = bucket.arena_offset;
      for (const uint32_t index : bucket.tensors) {
        EXPECT_EQ(after.offsets[index], next);
        next += pass.tensors[index].numel * dtype_bytes(bucket.dtype);
      }
      EXPECT_EQ(next, bucket.arena_offset + bucket.bytes);
      EXPECT_EQ(bucket.numel * dtype_bytes(bucket.dtype), bucket.bytes);
      bytes += bucket.bytes;
    }
    uint64_t expected = 0;
    for (const PlanTensor& tensor : pass.tensors)
      expected += tensor.numel * dtype_bytes(tensor.dtype);
    EXPECT_EQ(bytes, expected);
  }
}

TEST(PlanTimed, Half_the_bytes_on_the_wire_are_a_link_of_twice_the_rate) {
  std::mt19937_64 random(17);
  size_t other_edges = 0;
  for (unsigned round = 0; round < 100; ++round) {
    const Pass pass = random_pass(random, 60, true);
    LinkCurve twice = pass.curve;
    twice.bytes_per_us *= 2;
    const Plan narrow =
        plan_by_times(pass.tensors, pass.fill_order, {}, pass.ready, pass.curve, NORIA_FLOAT16);
    const Plan fast = plan_by_times(pass.tensors, pass.fill_order, {}, pass.ready, twice);
    EXPECT_EQ(fingerprint_of(narrow), fingerprint_of(fast)) << round;
    other_edges += fingerprint_of(narrow) != fingerprint_of(planned(pass, {}));
  }
  // Expect: it matters.
  EXPECT_GT(other_edges, 10u);
}

TEST(PlanTimed, A_hundred_thousand_tensors_have_few_enough_edges) {
  Times ready(100'000);
  std::iota(ready.rbegin(), ready.rend(), 0U);
  const Plan plan = plan_by_times(floats(ready.size(), 100), reverse_registration(ready.size()), {},
                                  ready, {.alpha_us = 0, .bytes_per_us = 400});
  EXPECT_LE(plan.buckets.size(), kMostEdges);
  EXPECT_GE(plan.buckets.size(), 2u);
}

TEST(PlanTimed, Gpt2_ends_soon_after_its_embedding_which_is_ready_last) {
  std::vector<PlanTensor> tensors;
  for (const uint64_t numel : test::gpt2()) tensors.push_back({numel, NORIA_FLOAT32});
  Times ready(tensors.size());
  uint64_t clock = 0;
  for (size_t i = tensors.size(); i-- > 0;) {
    if (i > 1) clock += tensors[i].numel + 2000;
    ready[i] = static_cast<uint32_t>(clock / 1000);
  }
  const LinkCurve curve{.alpha_us = 40, .bytes_per_us = 12000};  // three times what is produced
  const Plan plan = plan_by_times(tensors, reverse_registration(tensors.size()), {}, ready, curve);
  const double tail = curve.us((tensors[0].numel + tensors[1].numel) * 4);
  EXPECT_LE(end_of(plan, ready, curve) - ready[0], 1.05 * tail);
}

}  // namespace
}  // namespace noria::bucketing
