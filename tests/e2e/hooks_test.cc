// Hooks through the C API, over the ring: shards, narrow wires, one rank, and calls that cannot be.
#include <gtest/gtest.h>

#include <cstring>

#include "tests/support/c_reducer.hpp"

namespace noria::test {
namespace {

struct Seen {
  std::vector<noria_hook_bucket> buckets;
  float factor = 1;
};

extern "C" int32_t scale_bucket(const noria_hook_bucket* bucket, char*, size_t, void* user) {
  Seen& seen = *static_cast<Seen*>(user);
  seen.buckets.push_back(*bucket);
  auto* values = static_cast<float*>(bucket->data);
  for (uint64_t i = 0; i < bucket->bytes / sizeof(float); ++i) values[i] *= seen.factor;
  return 0;
}
extern "C" int32_t fail_bucket(const noria_hook_bucket*, char* why, size_t, void*) {
  std::strcpy(why, "full");
  return 28;
}

std::vector<Tensor> model() {
  std::vector<Tensor> tensors;
  for (uint64_t i = 0; i < 6; ++i)
    tensors.push_back({"t" + std::to_string(i), NORIA_FLOAT32, 1 + 50'000 * i});
  return tensors;
}

// What the hooks make of each element: the average times 2 and 4; exact, also in bfloat16.
double wanted(const RankOfJob& mine, const Tensor& tensor, uint64_t index) {
  double sum = 0;
  for (int32_t rank = 0; rank < mine.ranks; ++rank) sum += gradient_value(rank, 0, tensor, index);
  return sum / mine.ranks * 8;
}

class HooksTest : public testing::TestWithParam<JobConfig> {};
INSTANTIATE_TEST_SUITE_P(Ways, HooksTest,
                         testing::Values(JobConfig{}, JobConfig{.arena = false},
                                         JobConfig{.arena = false, .max_in_flight = 1},
                                         JobConfig{.plan = NORIA_PLAN_STRICT},
                                         JobConfig{.order = NORIA_ORDER_ARRIVAL},
                                         JobConfig{.wire_dtype = NORIA_BFLOAT16}));

TEST_P(HooksTest, Change_gradients_and_results_on_all_ranks) {
  for (const int32_t size : {1, 2, 3, 5}) {
    const noria_unique_id id = make_job_id();
    run_ranks(size, [&](int32_t rank, Wire&) {
      RankOfJob mine(id, rank, size, model(), GetParam());
      Seen before{.factor = 2}, after{.factor = 4};
      expect_ok(noria_reducer_set_hook(mine.reducer, NORIA_HOOK_BEFORE, &scale_bucket, &before));
      expect_ok(noria_reducer_set_hook(mine.reducer, NORIA_HOOK_AFTER, &scale_bucket, &after));
      expect_ok(noria_reducer_seal(mine.reducer));
      for (int step = 0; step < 2; ++step) {
        expect_ok(noria_step_begin(mine.reducer, 0));
        mine.give_all(0, 7, 1);
        expect_ok(noria_step_end(mine.reducer, nullptr, nullptr));
        for (uint32_t t = 0; t < mine.model.size(); ++t)
          for (uint64_t i = 0; i < mine.model[t].numel; i += 97)
            ASSERT_NEAR(element(NORIA_FLOAT32, mine.result(t), i), wanted(mine, mine.model[t], i),
                        GetParam().wire_dtype != 0 ? 0.25 : 1e-4);
        EXPECT_EQ(before.buckets.size(), after.buckets.size());
      }
    });
  }
}

TEST(Hooks, Of_shards_see_the_whole_bucket_and_then_this_ranks_part) {
  const noria_unique_id id = make_job_id();
  run_ranks(2, [&](int32_t rank, Wire&) {
    RankOfJob mine(id, rank, 2, model(), {.shard = NORIA_SHARD_REDUCE_SCATTER});
    Seen before{.factor = 2}, after{.factor = 4};
    expect_ok(noria_reducer_set_hook(mine.reducer, NORIA_HOOK_BEFORE, &scale_bucket, &before));
    expect_ok(noria_reducer_set_hook(mine.reducer, NORIA_HOOK_AFTER, &scale_bucket, &after));
    expect_ok(noria_reducer_seal(mine.reducer));
    expect_ok(noria_step_begin(mine.reducer, 0));
    mine.give_all(0, 7, 1);
    expect_ok(noria_step_end(mine.reducer, nullptr, nullptr));
    uint64_t all = 0, own = 0;
    for (const noria_hook_bucket& bucket : before.buckets) all += bucket.bytes;
    for (const Tensor& tensor : mine.model) all -= tensor.numel * sizeof(float);
    EXPECT_EQ(all, 0U);
    for (const noria_hook_bucket& bucket : after.buckets) {
      noria_shard_info shard = NORIA_SHARD_INFO_INIT;
      expect_ok(noria_reducer_shard(mine.reducer, bucket.bucket, &shard));
      EXPECT_EQ(bucket.data, shard.gradient);
      EXPECT_EQ(bucket.offset, shard.bucket_offset + shard.offset);
      EXPECT_EQ(bucket.bytes, shard.bytes);
      for (uint32_t i = 0; i < bucket.tensors; ++i) {
        const uint32_t t = bucket.tensor_ids[i];
        const auto* at = static_cast<const char*>(bucket.data) + bucket.tensor_offsets[i];
        own += bucket.tensor_bytes[i];
        EXPECT_NEAR(element(NORIA_FLOAT32, at, 0),
                    wanted(mine, mine.model[t], bucket.tensor_firsts[i]), 1e-4);
      }
    }
    EXPECT_GT(own, 0U);
  });
}

TEST(Hooks, A_failure_is_every_ranks_by_the_same_text) {
  const noria_unique_id id = make_job_id();
  RankCrew crew(3, [&](int32_t rank, Wire& parent) {
    RankOfJob mine(id, rank, 3, model(), {});
    Seen fine;
    expect_ok(noria_reducer_set_hook(mine.reducer, NORIA_HOOK_AFTER,
                                     rank == 2 ? &fail_bucket : &scale_bucket, &fine));
    expect_ok(noria_reducer_seal(mine.reducer));
    expect_ok(noria_step_begin(mine.reducer, 0));
    mine.give_all(0, 7, 2);
    expect_failure(
        noria_step_end(mine.reducer, nullptr, nullptr), NORIA_E_HOOK,
        "rank 2 had its hook fail for bucket 0 after it was reduced, with code 28: 'full'");
    EXPECT_STREQ(noria_status_name(NORIA_E_HOOK), "NORIA_E_HOOK");
    parent.send(std::hash<std::string>()(last_error()));
    expect_ok(noria_reducer_reset(mine.reducer));
    expect_ok(noria_barrier(mine.comm, nullptr, nullptr));
  });
  const auto first = crew.wire(0).recv<size_t>();
  for (const int32_t rank : {1, 2}) EXPECT_EQ(crew.wire(rank).recv<size_t>(), first);
  crew.expect_success();
}

TEST(Hooks, Calls_that_cannot_be_meant_are_refused) {
  const noria_unique_id id = make_job_id();
  run_ranks(1, [&](int32_t rank, Wire&) {
    RankOfJob mine(id, rank, 1, model(), {});
    expect_failure(noria_reducer_set_hook(nullptr, NORIA_HOOK_AFTER, nullptr, nullptr), NORIA_E_ARG,
                   "reducer is NULL");
    expect_failure(noria_reducer_set_hook(mine.reducer, 2, nullptr, nullptr), NORIA_E_ARG,
                   "moment is 2");
    expect_ok(noria_reducer_set_hook(mine.reducer, NORIA_HOOK_AFTER, nullptr, nullptr));
  });
}

// ---- parameters of another type -----------------------------------------------------------------

TEST(Parameters, Of_bfloat16_are_gathered_by_shards_of_float32_from_memory_registered_once) {
  const noria_unique_id id = make_job_id();
  run_ranks(2, [&](int32_t rank, Wire&) {
    RankOfJob mine(id, rank, 2, model(), {.shard = NORIA_SHARD_REDUCE_SCATTER});
    expect_ok(noria_reducer_seal(mine.reducer));
    uint64_t offset = 0, total = 0;
    expect_ok(noria_reducer_layout(mine.reducer, 0, &offset, &total));
    std::vector<uint16_t> first(total / 4), second(total / 4);
    for (std::vector<uint16_t>* memory : {&first, &first, &second, &first}) {
      std::fill(memory->begin(), memory->end(), uint16_t{0});
      noria_shard_info shard = NORIA_SHARD_INFO_INIT;
      for (uint32_t b = 0; noria_reducer_shard(mine.reducer, b, &shard) == NORIA_OK; ++b)
        for (uint64_t i = 0; i < shard.bytes / 4; ++i) {
          const uint64_t at = (shard.bucket_offset + shard.offset) / 4 + i;
          (*memory)[at] = static_cast<uint16_t>(at % 1000 + 1);
        }
      expect_ok(
          noria_reducer_all_gather_as(mine.reducer, memory->data(), total / 2, NORIA_BFLOAT16));
      for (uint32_t t = 0; t < mine.model.size(); ++t) {
        expect_ok(noria_reducer_layout(mine.reducer, t, &offset, &total));
        for (uint64_t i = 0; i < mine.model[t].numel; ++i)
          ASSERT_EQ((*memory)[offset / 4 + i], (offset / 4 + i) % 1000 + 1);
      }
    }
    expect_failure(noria_reducer_all_gather_as(mine.reducer, first.data(), total, NORIA_BFLOAT16),
                   NORIA_E_ARG, "bytes are not laid out");
    expect_failure(noria_reducer_all_gather_as(mine.reducer, first.data(), total, 77), NORIA_E_ARG,
                   "dtype 77 is none");
    expect_failure(noria_reducer_all_gather_as(nullptr, first.data(), total, 7), NORIA_E_ARG,
                   "reducer is NULL");
    expect_failure(noria_reducer_all_gather_as(mine.reducer, nullptr, total, 7), NORIA_E_ARG,
                   "memory is NULL");
  });
}

TEST(Parameters, Of_another_type_need_gradients_of_one_size) {
  const noria_unique_id id = make_job_id();
  run_ranks(1, [&](int32_t rank, Wire&) {
    RankOfJob mine(id, rank, 1, {{"a", NORIA_FLOAT32, 10}, {"b", NORIA_FLOAT64, 10}},
                   {.shard = NORIA_SHARD_REDUCE_SCATTER});
    expect_ok(noria_reducer_seal(mine.reducer));
    std::byte memory[8] = {};
    expect_failure(noria_reducer_all_gather_as(mine.reducer, memory, 8, NORIA_BFLOAT16),
                   NORIA_E_UNSUPPORTED, "differ in size");
  });
}

}  // namespace
}  // namespace noria::test
