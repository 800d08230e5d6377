#include "bucketing/plan.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

#include "bucketing/kernels.hpp"
#include "tests/support/model_shapes.hpp"

namespace noria::bucketing {
namespace {

using Sizes = std::vector<uint64_t>;

std::vector<PlanTensor> floats(const test::Numels& numels) {
  std::vector<PlanTensor> tensors;
  for (const uint64_t numel : numels) tensors.push_back({numel, NORIA_FLOAT32});
  return tensors;
}

Plan plan_buckets(std::span<const PlanTensor> tensors, const PlanCaps& caps) {
  return plan_buckets(PlanKind::ddp, tensors, reverse_registration(tensors.size()), caps);
}
Plan plan_strictly(std::span<const PlanTensor> tensors, const PlanCaps& caps) {
  return plan_buckets(PlanKind::strict, tensors, reverse_registration(tensors.size()), caps);
}

Sizes bucket_bytes(const Plan& plan) {
  Sizes sizes;
  for (const Bucket& bucket : plan.buckets) sizes.push_back(bucket.bytes);
  return sizes;
}

uint64_t total_numel(const test::Numels& numels) {
  return std::accumulate(numels.begin(), numels.end(), uint64_t{0});
}

TEST(Plan, ResNet50_is_cut_as_its_golden_plan_says) {
  const test::Numels model = test::resnet50();
  ASSERT_EQ(model.size(), 161u);
  ASSERT_EQ(total_numel(model), 25'557'032u);
  const Plan plan = plan_buckets(floats(model), {});
  EXPECT_EQ(bucket_bytes(plan), (Sizes{8'196'000, 31'502'336, 26'255'360, 26'550'272, 9'724'160}));
}

TEST(Plan, C01_ResNet18_is_cut_as_seen_on_real_accelerators) {
  const test::Numels model = test::resnet18();
  ASSERT_EQ(model.size(), 62u);
  ASSERT_EQ(total_numel(model), 11'689'512u);
  EXPECT_EQ(bucket_bytes(plan_buckets(floats(model), {})),
            (Sizes{2'052'000, 28'852'224, 15'853'824}));
  EXPECT_EQ(bucket_bytes(plan_buckets(floats(model), {.bucket_bytes = 35_MiB})),
            (Sizes{2'052'000, 38'297'600, 6'408'448}));
}

TEST(Plan, Vgg16_keeps_its_huge_tensor_whole) {
  const test::Numels model = test::vgg16();
  ASSERT_EQ(model.size(), 32u);
  ASSERT_EQ(total_numel(model), 138'357'544u);
  const Sizes sizes = bucket_bytes(plan_buckets(floats(model), {}));
  ASSERT_EQ(sizes.size(), 6u);
  EXPECT_EQ(sizes.front(), 16'388'000u);
  EXPECT_EQ(sizes.back(), 2'221'312u);
  EXPECT_GE(*std::max_element(sizes.begin(), sizes.end()), 392_MiB);
}

TEST(Plan, Bert_ends_on_its_word_embedding) {
  const test::Numels model = test::bert_base();
  ASSERT_EQ(model.size(), 199u);
  ASSERT_EQ(total_numel(model), 109'482'240u);
  const Sizes sizes = bucket_bytes(plan_buckets(floats(model), {}));
  ASSERT_EQ(sizes.size(), 14u);
  EXPECT_EQ(sizes.front(), 2'362'368u);
  EXPECT_EQ(sizes.back(), 95'348'736u);
}

TEST(Plan, Gpt2_ends_on_a_third_of_all_bytes) {
  const test::Numels model = test::gpt2();
  ASSERT_EQ(model.size(), 148u);
  ASSERT_EQ(total_numel(model), 124'439'808u);
  const Sizes sizes = bucket_bytes(plan_buckets(floats(model), {}));
  ASSERT_EQ(sizes.size(), 13u);
  EXPECT_EQ(sizes.front(), 9'446'400u);
  EXPECT_EQ(sizes.back(), 176'446'464u);
}

TEST(Plan, Each_dtype_has_a_small_first_bucket_of_its_own) {
  // Two dtypes by turns, each tensor as large as the first cap.  Expect: each closes at once, then
  // the large cap holds what follows until the end.
  const std::vector<PlanTensor> tensors{
      {50, NORIA_FLOAT64}, {100, NORIA_FLOAT32}, {50, NORIA_FLOAT64}, {100, NORIA_FLOAT32}};
  const Plan plan =
      plan_buckets(tensors, {.first_bucket_bytes = 400, .bucket_bytes = uint64_t{1} << 30});
  ASSERT_EQ(plan.buckets.size(), 4u);
  for (uint32_t b = 0; b < 4; ++b) EXPECT_EQ(plan.buckets[b].tensors, std::vector<uint32_t>{3 - b});
}

TEST(Plan, What_never_closed_follows_in_the_order_of_completion) {
  // f64 starts last but ends first in the walk.  Expect: f64 before f32.
  const std::vector<PlanTensor> tensors{{1, NORIA_FLOAT32}, {1, NORIA_FLOAT64}, {1, NORIA_FLOAT32}};
  const Plan plan = plan_buckets(tensors, {});
  ASSERT_EQ(plan.buckets.size(), 2u);
  EXPECT_EQ(plan.buckets[0].dtype, NORIA_FLOAT64);
  EXPECT_EQ(plan.buckets[1].tensors, (std::vector<uint32_t>{2, 0}));
}

TEST(Plan, C29_The_first_cap_is_as_configurable_as_the_others) {
  const std::vector<PlanTensor> tensors(8, PlanTensor{256, NORIA_FLOAT32});
  EXPECT_EQ(bucket_bytes(plan_buckets(tensors, {.first_bucket_bytes = 4096, .bucket_bytes = 4096})),
            (Sizes{4096, 4096}));
  EXPECT_EQ(
      bucket_bytes(plan_strictly(
          tensors, {.first_bucket_bytes = 1024, .bucket_bytes = 3072, .last_bucket_bytes = 2048})),
      (Sizes{1024, 3072, 2048, 2048}));
}

TEST(Plan, C44_A_tensor_larger_than_the_cap_is_split_over_buckets) {
  // A small tensor on either side of one of 10 000 bytes.
  const std::vector<PlanTensor> tensors{
      {25, NORIA_FLOAT32}, {2500, NORIA_FLOAT32}, {25, NORIA_FLOAT32}};
  const Plan plan = plan_strictly(
      tensors, {.first_bucket_bytes = 128, .bucket_bytes = 4096, .last_bucket_bytes = 128});
  EXPECT_EQ(bucket_bytes(plan), (Sizes{128, 4096, 4096, 1780, 100}));
  EXPECT_EQ(plan.buckets[0].tensors, (std::vector<uint32_t>{2, 1}));
  EXPECT_EQ(plan.buckets[3].tensors, (std::vector<uint32_t>{1}));
  EXPECT_EQ(plan.buckets[4].tensors, (std::vector<uint32_t>{0}));
}

TEST(Plan, A_strict_plan_of_gpt2_ends_small_though_its_last_tensor_is_large) {
  const Plan plan = plan_strictly(floats(test::gpt2()), {});
  EXPECT_LE(plan.buckets.back().bytes, 1_MiB);
  EXPECT_EQ(plan.buckets.back().tensors, std::vector<uint32_t>{0});
}

TEST(Plan, Strict_buckets_are_sent_in_the_order_in_which_they_become_complete) {
  // Walked from the end: the f64 bucket never closes but is complete before the second of f32.
  const std::vector<PlanTensor> tensors{
      {64, NORIA_FLOAT32}, {64, NORIA_FLOAT32}, {8, NORIA_FLOAT64}, {64, NORIA_FLOAT32}};
  const Plan plan = plan_strictly(
      tensors, {.first_bucket_bytes = 256, .bucket_bytes = 1024, .last_bucket_bytes = 1024});
  ASSERT_EQ(plan.buckets.size(), 3u);
  EXPECT_EQ(plan.buckets[1].dtype, NORIA_FLOAT64);
  EXPECT_EQ(plan.buckets[2].tensors, (std::vector<uint32_t>{1, 0}));
}

TEST(Plan, ResNet50_is_cut_alike_in_the_order_in_which_its_gradients_really_come) {
  // The reverse of registration, but for each norm its weight before its bias.
  const std::vector<PlanTensor> tensors = floats(test::resnet50());
  std::vector<uint32_t> order = reverse_registration(tensors.size());
  for (size_t i = 2; i + 1 < order.size(); ++i)
    if (tensors[order[i]].numel == tensors[order[i + 1]].numel) {
      std::swap(order[i], order[i + 1]);
      ++i;
    }
  EXPECT_EQ(bucket_bytes(plan_buckets(PlanKind::ddp, tensors, order, {})),
            (Sizes{8'196'000, 31'502'336, 26'255'360, 26'550'272, 9'724'160}));
}

TEST(Plan, A_new_launch_order_moves_no_tensor) {
  const std::vector<PlanTensor> tensors(4, PlanTensor{100, NORIA_FLOAT32});
  Plan plan = plan_buckets(tensors, {.first_bucket_bytes = 400, .bucket_bytes = 400});
  const std::vector<uint64_t> offsets = plan.offsets;
  launch_in_order(plan, std::vector<uint32_t>{7, 9, 1, 8});
  EXPECT_EQ(plan.offsets, offsets);
  for (size_t b = 0; b < 4; ++b) {
    const uint32_t index = std::vector<uint32_t>{2, 0, 3, 1}[b];
    EXPECT_EQ(plan.buckets[b].tensors, std::vector<uint32_t>{index});
    EXPECT_EQ(plan.buckets[b].arena_offset, offsets[index]);
  }
}

TEST(Plan, Fingerprints_tell_plans_apart) {
  const std::vector<PlanTensor> tensors(4, PlanTensor{100, NORIA_FLOAT32});
  Plan plan = plan_buckets(tensors, {.first_bucket_bytes = 400, .bucket_bytes = 400});
  const uint64_t fingerprint = fingerprint_of(plan);
  EXPECT_EQ(fingerprint,
            fingerprint_of(plan_buckets(tensors, {.first_bucket_bytes = 399, .bucket_bytes = 1})));
  launch_in_order(plan, std::vector<uint32_t>{0, 1, 2, 3});
  EXPECT_NE(fingerprint, fingerprint_of(plan));
  EXPECT_NE(fingerprint, fingerprint_of(plan_buckets(tensors, {})));
}

TEST(Plan, Nothing_gives_nothing) {
  const Plan plan = plan_buckets({}, {});
  EXPECT_TRUE(plan.buckets.empty());
  EXPECT_EQ(plan.arena_bytes, 0u);
}

TEST(Plan, Empty_tensors_have_a_place_and_no_bytes) {
  const std::vector<PlanTensor> tensors(3, PlanTensor{0, NORIA_BFLOAT16});
  const Plan plan = plan_buckets(tensors, {});
  ASSERT_EQ(plan.buckets.size(), 1u);
  EXPECT_EQ(plan.buckets[0].tensors.size(), 3u);
  EXPECT_EQ(plan.buckets[0].bytes, 0u);
  EXPECT_EQ(plan.arena_bytes, 0u);
}

// ---- properties that hold for any list
// -----------------------------------------------------------

std::vector<PlanTensor> random_tensors(std::mt19937_64& random) {
  constexpr noria_dtype kDtypes[] = {NORIA_FLOAT32, NORIA_FLOAT16, NORIA_BFLOAT16,
                                     NORIA_FLOAT64, NORIA_INT32,   NORIA_INT64};
  const size_t dtypes = 1 + random() % std::size(kDtypes);
  std::vector<PlanTensor> tensors(random() % 40);
  for (PlanTensor& tensor : tensors)
    tensor = {random() % 8 == 0 ? 0 : random() % 300, kDtypes[random() % dtypes]};
  return tensors;
}

// Tensors lie back to back in their buckets, in fill order; with `splits`, maybe in several.
void expect_every_tensor_once(std::span<const PlanTensor> tensors, const Plan& plan,
                              bool splits = false) {
  std::vector<uint64_t> found(tensors.size(), 0);
  std::vector<unsigned> seen(tensors.size(), 0);
  for (const Bucket& bucket : plan.buckets) {
    uint64_t next = bucket.arena_offset;
    for (const uint32_t index : bucket.tensors) {
      ++seen[index];
      EXPECT_EQ(tensors[index].dtype, bucket.dtype);
      const uint64_t bytes = tensors[index].numel * dtype_bytes(bucket.dtype);
      const ArenaRange part = part_in_bucket(
          bucket, {.begin = plan.offsets[index], .end = plan.offsets[index] + bytes});
      EXPECT_EQ(part.begin, next);
      EXPECT_TRUE(part.bytes() != 0 || bytes == 0);
      EXPECT_TRUE(splits || part.bytes() == bytes);
      found[index] += part.bytes();
      next = part.end;
    }
    EXPECT_EQ(next, bucket.arena_offset + bucket.bytes);
    EXPECT_EQ(bucket.bytes, bucket.numel * dtype_bytes(bucket.dtype));
    EXPECT_TRUE(std::is_sorted(bucket.tensors.rbegin(), bucket.tensors.rend()));
  }
  for (size_t i = 0; i < tensors.size(); ++i) {
    EXPECT_EQ(found[i], tensors[i].numel * dtype_bytes(tensors[i].dtype));
    EXPECT_TRUE(splits ? seen[i] >= 1 : seen[i] == 1);
  }
}

// A bucket that closed reached its cap only with its last tensor; one that did not close is the
// last of its dtype.
void expect_soft_caps(std::span<const PlanTensor> tensors, const Plan& plan, const PlanCaps& caps) {
  std::vector<unsigned> of_dtype(NORIA_BFLOAT16 + 1, 0);
  std::vector<bool> is_open(NORIA_BFLOAT16 + 1, false);
  for (const Bucket& bucket : plan.buckets) {
    const auto dtype = static_cast<size_t>(bucket.dtype);
    EXPECT_FALSE(is_open[dtype]) << "a bucket follows one of its dtype that never closed";
    const uint64_t cap = of_dtype[dtype]++ == 0 ? caps.first_bucket_bytes : caps.bucket_bytes;
    ASSERT_FALSE(bucket.tensors.empty());
    const uint64_t last = tensors[bucket.tensors.back()].numel * dtype_bytes(bucket.dtype);
    EXPECT_TRUE(bucket.tensors.size() == 1 || bucket.bytes - last < cap);
    is_open[dtype] = bucket.bytes < cap;
  }
}

void expect_arena_without_overlap(const Plan& plan) {
  std::vector<const Bucket*> buckets;
  for (const Bucket& bucket : plan.buckets) buckets.push_back(&bucket);
  std::stable_sort(buckets.begin(), buckets.end(), [](const Bucket* a, const Bucket* b) {
    // One without bytes lies where the next begins.
    return std::pair(a->arena_offset, a->bytes) < std::pair(b->arena_offset, b->bytes);
  });
  uint64_t end = 0;
  for (const Bucket* bucket : buckets) {
    EXPECT_EQ(bucket->arena_offset % kBucketAlign, 0u);
    EXPECT_GE(bucket->arena_offset, end);
    EXPECT_LT(bucket->arena_offset, end + kBucketAlign);
    end = bucket->arena_offset + bucket->bytes;
  }
  EXPECT_GE(plan.arena_bytes, end);
}

// No cap is exceeded, and only what must be split is.
void expect_hard_caps(std::span<const PlanTensor> tensors, const Plan& plan, const PlanCaps& caps) {
  const auto lines = [](uint64_t cap) {
    return std::max(cap / kBucketAlign * kBucketAlign, kBucketAlign);
  };
  const uint64_t cap = lines(caps.bucket_bytes);
  std::vector<const Bucket*> last(NORIA_BFLOAT16 + 1, nullptr);
  std::vector<unsigned> pieces(tensors.size(), 0);
  for (const Bucket& bucket : plan.buckets) {
    ASSERT_FALSE(bucket.tensors.empty());
    const Bucket*& before = last[static_cast<size_t>(bucket.dtype)];
    EXPECT_LE(bucket.bytes,
              before == nullptr ? std::min(cap, lines(caps.first_bucket_bytes)) : cap);
    before = &bucket;
    for (const uint32_t index : bucket.tensors) ++pieces[index];
  }
  for (const Bucket* bucket : last)
    EXPECT_TRUE(bucket == nullptr || bucket->bytes <= std::min(cap, lines(caps.last_bucket_bytes)));
  for (size_t i = 0; i < tensors.size(); ++i) {
    const uint64_t bytes = tensors[i].numel * dtype_bytes(tensors[i].dtype);
    // In the first bucket, in the last, and in as many between them as it needs.
    EXPECT_LE(pieces[i], 3 + bytes / cap);
    EXPECT_TRUE(pieces[i] == 1 || bytes > std::min({cap, lines(caps.first_bucket_bytes),
                                                    lines(caps.last_bucket_bytes)}));
  }
}

TEST(Plan, Random_lists_keep_the_strict_rules) {
  std::mt19937_64 random(2025);
  for (unsigned round = 0; round < 10'000 && !testing::Test::HasFailure(); ++round) {
    const std::vector<PlanTensor> tensors = random_tensors(random);
    const PlanCaps caps{.first_bucket_bytes = 1 + random() % 1000,
                        .bucket_bytes = 1 + random() % 4000,
                        .last_bucket_bytes = 1 + random() % 2000};
    const Plan plan = plan_strictly(tensors, caps);
    expect_every_tensor_once(tensors, plan, true);
    expect_hard_caps(tensors, plan, caps);
    expect_arena_without_overlap(plan);
  }
}

TEST(Plan, Random_lists_keep_the_rules) {
  std::mt19937_64 random(2024);
  for (unsigned round = 0; round < 10'000 && !testing::Test::HasFailure(); ++round) {
    const std::vector<PlanTensor> tensors = random_tensors(random);
    const PlanCaps caps{.first_bucket_bytes = 1 + random() % 1000,
                        .bucket_bytes = 1 + random() % 4000};
    const Plan plan = plan_buckets(tensors, caps);
    expect_every_tensor_once(tensors, plan);
    expect_soft_caps(tensors, plan, caps);
    expect_arena_without_overlap(plan);
  }
}

TEST(Plan, A_hundred_thousand_tensors_are_planned_in_one_walk) {
  std::vector<PlanTensor> tensors(100'000);
  for (size_t i = 0; i < tensors.size(); ++i)
    tensors[i] = {i % 1000, i % 3 == 0 ? NORIA_BFLOAT16 : NORIA_FLOAT32};
  const Plan plan = plan_buckets(tensors, {});
  expect_every_tensor_once(tensors, plan);
  expect_soft_caps(tensors, plan, {});
}

}  // namespace
}  // namespace noria::bucketing
