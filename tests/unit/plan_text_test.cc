#include "bucketing/plan_text.hpp"

#include <gtest/gtest.h>

#include <random>

#include "bucketing/kernels.hpp"
#include "bucketing/plan_timed.hpp"

namespace noria::bucketing {
namespace {

TensorTable table_of(std::span<const PlanTensor> tensors) {
  TensorTable table;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto added = table.add("layer " + std::to_string(i), tensors[i].dtype, tensors[i].numel);
    EXPECT_TRUE(added.is_ok());
  }
  return table;
}

constexpr const char* kTwoDtypes =
    "noria_plan 1 lines\n"
    "tensor 2 float32 40 layer 2\n"
    "tensor 1 float32 100 layer 1\n"
    "tensor 0 bfloat16 9 layer 0\n"
    "bucket float32 0 32\n"
    "bucket bfloat16 0 9\n"
    "bucket float32 32 108\n";

TEST(PlanText, Is_written_as_people_read_it) {
  const std::vector<PlanTensor> tensors{
      {9, NORIA_BFLOAT16}, {100, NORIA_FLOAT32}, {40, NORIA_FLOAT32}};
  const auto saved = parse_plan(kTwoDtypes, "p");
  ASSERT_TRUE(saved.is_ok()) << saved.failure().text;
  EXPECT_EQ(text_of(saved.value()), kTwoDtypes);
  const TensorTable table = table_of(tensors);
  const auto plan = plan_of(saved.value(), table);
  ASSERT_TRUE(plan.is_ok()) << plan.failure().text;
  EXPECT_EQ(text_of(saved_of(plan.value(), table, false)), kTwoDtypes);

  // Expect: the split tensor lies without a gap, and in both buckets.
  EXPECT_EQ(plan->buckets[0].tensors, std::vector<uint32_t>{2});
  EXPECT_EQ(plan->buckets[2].tensors, (std::vector<uint32_t>{2, 1}));
  EXPECT_EQ(plan->buckets[2].arena_offset, plan->buckets[0].arena_offset + 128);
  EXPECT_EQ(plan->offsets[1], plan->offsets[2] + 160);
}

TEST(PlanText, Every_plan_is_read_back_as_the_same) {
  std::mt19937_64 random(5);
  for (unsigned round = 0; round < 600; ++round) {
    std::vector<PlanTensor> tensors(random() % 40);
    std::vector<uint32_t> ready;
    for (PlanTensor& tensor : tensors) {
      tensor = {random() % 6 == 0 ? 0 : random() % 900,
                random() % 3 == 0 ? NORIA_FLOAT64 : NORIA_BFLOAT16};
      ready.push_back(static_cast<uint32_t>(random() % 500));
    }
    const PlanCaps caps{.first_bucket_bytes = 1 + random() % 900,
                        .bucket_bytes = 1 + random() % 4000,
                        .last_bucket_bytes = 1 + random() % 900};
    const PlanKind kind = kPlanKinds[round % kPlanKinds.size()];
    const bool is_packed = kind == PlanKind::planned;
    const auto order = reverse_registration(tensors.size());
    Plan plan =
        is_packed ? plan_by_times(tensors, order, caps, ready, {.alpha_us = 3, .bytes_per_us = 100})
                  : plan_buckets(kind, tensors, order, caps);
    launch_in_order(plan, ready);

    const TensorTable table = table_of(tensors);
    const std::string text = text_of(saved_of(plan, table, is_packed));
    const auto parsed = parse_plan(text, "p");
    ASSERT_TRUE(parsed.is_ok()) << parsed.failure().text << "\n" << text;
    const auto again = plan_of(parsed.value(), table);
    ASSERT_TRUE(again.is_ok()) << again.failure().text;
    EXPECT_EQ(text_of(saved_of(again.value(), table, is_packed)), text);
    // One without elements lies anywhere.
    for (size_t i = 0; i < tensors.size(); ++i)
      EXPECT_TRUE(tensors[i].numel == 0 || again->offsets[i] == plan.offsets[i]) << text;
    ASSERT_EQ(again->buckets.size(), plan.buckets.size());
    for (size_t b = 0; b < plan.buckets.size(); ++b) {
      EXPECT_EQ(again->buckets[b].bytes, plan.buckets[b].bytes);
      if (plan.buckets[b].bytes == 0) continue;
      EXPECT_EQ(again->buckets[b].arena_offset, plan.buckets[b].arena_offset);
    }
  }
}

struct Wrong {
  std::string what, by;  // replaced in the good text
  std::string failure;
};

TEST(PlanText, What_is_wrong_is_told_by_line_and_column) {
  for (const Wrong& wrong : std::vector<Wrong>{
           {"noria_plan", "plan", "p:1:1: a plan begins with"},
           {" 1 lines", " 2 lines", "p:1:12: this noria reads version 1"},
           {"1 lines", "1 rows", "p:1:14: a plan begins with"},
           {"1 lines", "1 lines now", "p:1:20: nothing more"},
           {"tensor 1", "tensro 1", "p:3:1: a row begins with"},
           {"tensor 1", "tensor x", "p:3:8: a tensor's index is 'x'"},
           {"tensor 1", "tensor 2", "p:3:1: index 2 comes twice"},
           {"tensor 1", "tensor 3", "p:3:1: index 3: only 3 tensors"},
           {"bfloat16 9", "bfloat17 9", "p:4:10: 'bfloat17' is no dtype"},
           {"bfloat16 9", "int8 9", "p:4:10: 'int8' is no dtype"},
           {"float32 100", "float32 1e2", "p:3:18: a number of elements is '1e2'"},
           {"100 layer", "100000000000000 layer", "p:8:1: no bucket holds the float32 elements"},
           {"100 layer", "140737488355327 layer", "p:3:34: all tensors together"},
           {" layer 1", "", "p:3:21: a tensor's name"},
           {"layer 1", "layer\x01", "p:3:22: a tensor's name"},
           {"bucket float32 32", "bucket float32 33", "p:7:1: a float32 bucket is expected"},
           {"bucket float32 32 108", "bucket float32 32 109", "p:7:1: it ends past the 140"},
           {"32 108", "32 107", "p:8:1: no bucket holds the float32 elements from 139 on"},
           {"108", "108 1", "p:7:23: nothing more"},
           {"bucket bfloat16 0 9\n", "", "p:7:1: no bucket holds the bfloat16 elements from 0"},
           {"0 32\nbucket bfloat16 0 9\nbucket float32 32 108",
            "0 33\nbucket bfloat16 0 9\nbucket float32 33 107", "p:5:1: it ends within a tensor"},
           {"bucket bfloat16 0 9\n", "bucket bfloat16 0 9\ntensor 3 float32 1 c\n",
            "p:7:1: tensors come before buckets"}}) {
    std::string text = kTwoDtypes;
    const size_t at = text.find(wrong.what);
    ASSERT_NE(at, std::string::npos) << wrong.what;
    text.replace(at, wrong.what.size(), wrong.by);
    const auto refused = parse_plan(text, "p");
    ASSERT_FALSE(refused.is_ok()) << text;
    EXPECT_EQ(refused.failure().code, NORIA_E_ARG);
    EXPECT_EQ(refused.failure().text.substr(0, wrong.failure.size()), wrong.failure);
  }
  EXPECT_FALSE(parse_plan("", "p").is_ok());
  EXPECT_FALSE(parse_plan("noria_plan 1 packed\nbucket float32 0 0\n", "p").is_ok());
  EXPECT_TRUE(parse_plan("noria_plan 1 packed\n", "p").is_ok());
}

TEST(PlanText, A_plan_of_other_tensors_is_refused_by_name) {
  const auto saved = parse_plan(kTwoDtypes, "p");
  ASSERT_TRUE(saved.is_ok());
  const auto fewer = plan_of(saved.value(), table_of(std::vector<PlanTensor>{{9, NORIA_BFLOAT16}}));
  ASSERT_FALSE(fewer.is_ok());
  EXPECT_EQ(fewer.failure().text, "the loaded plan is of 3 tensors, and 1 were registered");
  const auto other =
      plan_of(saved.value(), table_of(std::vector<PlanTensor>{
                                 {9, NORIA_BFLOAT16}, {101, NORIA_FLOAT32}, {40, NORIA_FLOAT32}}));
  ASSERT_FALSE(other.is_ok());
  EXPECT_EQ(other.failure().text,
            "tensor 1 of the loaded plan is 'layer 1', float32, 100 elements; registered was "
            "'layer 1', float32, 101 elements");
}

}  // namespace
}  // namespace noria::bucketing
