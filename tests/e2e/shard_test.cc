// Reducers whose ranks keep a shard of each bucket, through the C API, as ZeRO and FSDP do it.

#include <gtest/gtest.h>

#include "tests/support/c_reducer.hpp"

namespace noria::test {
namespace {

double average_of(const RankOfJob& mine, const Tensor& tensor, uint64_t step, uint64_t index) {
  double sum = 0;
  for (int32_t rank = 0; rank < mine.ranks; ++rank)
    sum += gradient_value(rank, step, tensor, index);
  return sum / mine.ranks;
}

struct Case {
  int32_t ranks;
  JobConfig config;
};
class ShardTest : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Ways, ShardTest,
    testing::Values(
        Case{1, {.shard = NORIA_SHARD_REDUCE_SCATTER}},
        Case{2, {.shard = NORIA_SHARD_REDUCE_SCATTER}},
        Case{2, {.arena = false, .plan = NORIA_PLAN_STRICT, .shard = NORIA_SHARD_REDUCE_SCATTER}},
        Case{4, {.wire_dtype = NORIA_BFLOAT16, .shard = NORIA_SHARD_REDUCE_SCATTER}}));

// A step of plain descent: each rank updates its shard of the parameters, then all gather them.
TEST_P(ShardTest, Every_element_is_some_ranks_and_parameters_come_together_again) {
  const auto [size, config] = GetParam();
  const noria_unique_id id = make_job_id();
  run_ranks(size, [&, size = size, config = config](int32_t rank, Wire&) {
    const std::vector<Tensor> model = awkward_model({NORIA_FLOAT32});
    RankOfJob mine(id, rank, size, model, config);
    expect_ok(noria_reducer_seal(mine.reducer));
    uint64_t total = 0, offset = 0;
    expect_ok(noria_reducer_layout(mine.reducer, 0, &offset, &total));
    std::vector<std::byte> parameters(total);
    for (uint64_t step = 0; step < 3; ++step) {
      expect_ok(noria_step_begin(mine.reducer, 0));
      mine.give_all(step, step * 10 + static_cast<uint64_t>(rank), 2);
      expect_ok(noria_step_end(mine.reducer, nullptr, nullptr));
      for (const noria_shard_range& range : shard_ranges(mine.reducer))
        for (uint64_t i = 0; i < range.count; ++i) {
          const double gradient = element(range.dtype, range.gradient, i);
          ASSERT_EQ(gradient, average_of(mine, model[range.tensor], step, range.first + i))
              << model[range.tensor].name << " element " << range.first + i;
          std::byte* const at = parameters.data() + range.offset;
          set_element(range.dtype, at, i, element(range.dtype, at, i) - gradient);
        }
      expect_ok(noria_reducer_all_gather(mine.reducer, parameters.data(), total));
    }
    // Expect: all parameters, on every rank, are what the three averages make of zero.
    for (uint32_t t = 0; t < model.size(); ++t) {
      expect_ok(noria_reducer_layout(mine.reducer, t, &offset, &total));
      for (uint64_t i = 0; i < model[t].numel; ++i) {
        double sum = 0;
        for (uint64_t step = 0; step < 3; ++step) sum -= average_of(mine, model[t], step, i);
        ASSERT_EQ(element(NORIA_FLOAT32, parameters.data() + offset, i), sum)
            << model[t].name << " element " << i;
      }
    }
  });
}

TEST(Shards, Of_a_bucket_are_equal_aligned_and_side_by_side) {
  constexpr int32_t kSize = 3;
  const noria_unique_id id = make_job_id();
  RankCrew crew(kSize, [&](int32_t rank, Wire& parent) {
    RankOfJob mine(id, rank, kSize, awkward_model({NORIA_FLOAT32}),
                   {.shard = NORIA_SHARD_REDUCE_SCATTER});
    expect_ok(noria_reducer_seal(mine.reducer));
    noria_shard_info info = NORIA_SHARD_INFO_INIT;
    uint32_t bucket = 0;
    uint64_t bytes = 0;
    for (; noria_reducer_shard(mine.reducer, bucket, &info) == NORIA_OK; ++bucket) {
      const uint64_t length = (info.bucket_bytes / kSize + 127) / 128 * 128;
      EXPECT_LE(info.bytes, length + 128);
      EXPECT_EQ(info.offset % 128 == 0 || info.bytes == 0, true);
      bytes += info.bytes;
    }
    EXPECT_GT(bucket, 1U);
    parent.send(bytes);
  });
  uint64_t all = 0, wanted = 0;
  for (int32_t rank = 0; rank < kSize; ++rank) all += crew.wire(rank).recv<uint64_t>();
  for (const Tensor& tensor : awkward_model({NORIA_FLOAT32})) wanted += tensor.numel * 4;
  EXPECT_EQ(all, wanted);
  crew.expect_success();
}

TEST(Shards, Carry_half_of_an_all_reduce) {
  const noria_unique_id id = make_job_id();
  run_ranks(2, [&](int32_t rank, Wire&) {
    RankOfJob mine(id, rank, 2, {{"w", NORIA_FLOAT32, 400'000}},
                   {.shard = NORIA_SHARD_REDUCE_SCATTER});
    expect_ok(noria_reducer_seal(mine.reducer));
    noria_comm_info before{.struct_size = sizeof before}, after = before;
    expect_ok(noria_observe_comm(mine.comm, &before));
    for (uint64_t step = 0; step < 4; ++step) {
      expect_ok(noria_step_begin(mine.reducer, 0));
      expect_ok(mine.give(0, step));
      expect_ok(noria_step_end(mine.reducer, nullptr, nullptr));
    }
    expect_ok(noria_observe_comm(mine.comm, &after));
    const uint64_t data = 4 * 400'000 * sizeof(float) / 2,
                   sent = after.sent_bytes - before.sent_bytes;
    EXPECT_GE(sent, data);
    EXPECT_LE(sent, data + data / 50 + 16'384);
  });
}

TEST(Shards, A_missing_tensor_fails_the_step_on_all_ranks) {
  const noria_unique_id id = make_job_id();
  run_ranks(2, [&](int32_t rank, Wire&) {
    RankOfJob mine(id, rank, 2, awkward_model({NORIA_FLOAT32}),
                   {.shard = NORIA_SHARD_REDUCE_SCATTER});
    expect_ok(noria_reducer_seal(mine.reducer));
    expect_ok(noria_step_begin(mine.reducer, 0));
    for (uint32_t t = rank == 1 ? 1 : 0; t < mine.model.size(); ++t) expect_ok(mine.give(t, 0));
    expect_failure(noria_step_end(mine.reducer, nullptr, nullptr), NORIA_E_MISSING,
                   "rank 1 did not give 't0'");
  });
}

TEST(Shards, Are_refused_where_there_are_none) {
  const noria_unique_id id = make_job_id();
  run_ranks(1, [&](int32_t rank, Wire&) {
    RankOfJob whole(id, rank, 1, awkward_model({NORIA_FLOAT32}), {});
    noria_shard_info info = NORIA_SHARD_INFO_INIT;
    uint32_t count = 0;
    uint64_t offset = 0, total = 0;
    std::byte memory[8] = {};
    expect_failure(noria_reducer_shard(whole.reducer, 0, &info), NORIA_E_STATE, "after noria_red");
    expect_failure(noria_reducer_layout(whole.reducer, 0, &offset, &total), NORIA_E_STATE,
                   "offsets exist after");
    expect_ok(noria_reducer_seal(whole.reducer));
    expect_failure(noria_reducer_shard(whole.reducer, 0, &info), NORIA_E_STATE, "no shards");
    expect_failure(noria_reducer_shard_ranges(whole.reducer, nullptr, 0, &count), NORIA_E_STATE,
                   "no shards");
    expect_failure(noria_reducer_all_gather(whole.reducer, memory, 8), NORIA_E_STATE, "no shards");
    expect_failure(noria_reducer_shard(nullptr, 0, &info), NORIA_E_ARG, "reducer is NULL");
    expect_failure(noria_reducer_shard_ranges(nullptr, nullptr, 0, &count), NORIA_E_ARG,
                   "reducer is NULL");
    expect_failure(noria_reducer_shard_ranges(whole.reducer, nullptr, 0, nullptr), NORIA_E_ARG,
                   "count is NULL");
    expect_failure(noria_reducer_shard_ranges(whole.reducer, nullptr, 3, &count), NORIA_E_ARG,
                   "out is NULL");
    expect_failure(noria_reducer_layout(nullptr, 0, &offset, &total), NORIA_E_ARG,
                   "reducer is NULL");
    expect_failure(noria_reducer_layout(whole.reducer, 0, nullptr, &total), NORIA_E_ARG,
                   "offset is NULL");
    expect_failure(noria_reducer_layout(whole.reducer, 0, &offset, nullptr), NORIA_E_ARG,
                   "total_bytes is NULL");
    expect_failure(noria_reducer_layout(whole.reducer, 99, &offset, &total), NORIA_E_ARG,
                   "no tensor has id 99");
    expect_failure(noria_reducer_all_gather(nullptr, memory, 8), NORIA_E_ARG, "reducer is NULL");
    expect_failure(noria_reducer_all_gather(whole.reducer, nullptr, 8), NORIA_E_ARG,
                   "memory is NULL");
  });
  const noria_unique_id other = make_job_id();
  run_ranks(1, [&](int32_t rank, Wire&) {
    RankOfJob mine(other, rank, 1, awkward_model({NORIA_FLOAT32}),
                   {.shard = NORIA_SHARD_REDUCE_SCATTER});
    expect_ok(noria_reducer_seal(mine.reducer));
    const void* gradient = nullptr;
    expect_failure(noria_grad_result(mine.reducer, 0, nullptr, 0, &gradient), NORIA_E_STATE,
                   "there is no result");
    noria_shard_info info = NORIA_SHARD_INFO_INIT;
    std::byte memory[8] = {};
    expect_failure(noria_reducer_shard(mine.reducer, 999, &info), NORIA_E_ARG, "index 999");
    expect_failure(noria_reducer_shard(mine.reducer, 0, nullptr), NORIA_E_ARG, "is NULL");
    expect_failure(noria_reducer_all_gather(mine.reducer, memory, 8), NORIA_E_ARG,
                   "8 bytes are not laid out");
    expect_ok(noria_step_begin(mine.reducer, 0));
    uint64_t offset = 0, total = 0;
    expect_ok(noria_reducer_layout(mine.reducer, 0, &offset, &total));
    std::vector<std::byte> all(total);
    expect_failure(noria_reducer_all_gather(mine.reducer, all.data(), total), NORIA_E_STATE,
                   "a step of a reducer is open");
  });
}

}  // namespace
}  // namespace noria::test
