// What steps tell of a reducer whose ranks keep shards: the order in which buckets are sent, what
// nobody used, what is not finite, and one tensor's part before the step has ended.

#include <gtest/gtest.h>

#include <limits>
#include <map>

#include "tests/support/c_reducer.hpp"

namespace noria::test {
namespace {

// Registered in this order, so that the first bucket holds D and C, the next B, the last A.
constexpr uint32_t kA = 0, kB = 1, kC = 2, kD = 3;
std::vector<Tensor> four() {
  return {{"a", NORIA_FLOAT32, 150'000},
          {"b", NORIA_FLOAT32, 140'000},
          {"c", NORIA_FLOAT32, 500},
          {"d", NORIA_FLOAT32, 700}};
}

JobConfig sharded(bool arena) { return {.arena = arena, .shard = NORIA_SHARD_REDUCE_SCATTER}; }

// Runs a job of `four` with and without views.
void run_both(int32_t size, const std::function<void(JobConfig&)>& change,
              const std::function<void(RankOfJob&)>& body) {
  for (const bool arena : {true, false}) {
    JobConfig config = sharded(arena);
    change(config);
    const noria_unique_id id = make_job_id();
    run_ranks(size, [&](int32_t rank, Wire&) {
      RankOfJob mine(id, rank, size, four(), config);
      expect_ok(noria_reducer_seal(mine.reducer));
      body(mine);
    });
  }
}
void as_it_is(JobConfig&) {}

// All elements of what this rank gives for a tensor.
class Gradients {
 public:
  explicit Gradients(RankOfJob& of) : mine_(of) {
    for (const Tensor& tensor : of.model) own_.emplace_back(tensor.numel);
  }
  void give(uint32_t id, float value) {
    float* place = own_[id].data();
    void* view = nullptr;
    uint64_t bytes = 0;
    const bool is_arena = noria_reducer_view(mine_.reducer, id, &view, &bytes) == NORIA_OK;
    if (is_arena) place = static_cast<float*>(view);
    std::fill_n(place, mine_.model[id].numel, value);
    expect_ok(noria_grad_ready(mine_.reducer, id, is_arena ? nullptr : place, nullptr));
  }
  void give_all(float value) {
    for (uint32_t id = 0; id < mine_.model.size(); ++id) give(id, value);
  }
  // The elements of the tensor that this rank keeps, by whatever tells of them.
  std::vector<noria_shard_range> ranges(uint32_t id) const {
    std::vector<noria_shard_range> of_tensor;
    for (const noria_shard_range& range : shard_ranges(mine_.reducer))
      if (range.tensor == id) of_tensor.push_back(range);
    return of_tensor;
  }
  void expect_values(uint32_t id, float value) const {
    for (const noria_shard_range& range : ranges(id))
      for (uint64_t i = 0; i < range.count; ++i)
        ASSERT_EQ(static_cast<const float*>(range.gradient)[i], value)
            << mine_.model[id].name << " element " << range.first + i;
  }

 private:
  RankOfJob& mine_;
  std::vector<std::vector<float>> own_;
};

// ---- order --------------------------------------------------------------------------------------

// Where a shard lies by the offset of its bucket, which stays when the launch order changes.
std::map<uint64_t, void*> shards_by_bucket(noria_reducer* reducer) {
  std::map<uint64_t, void*> places;
  noria_shard_info info = NORIA_SHARD_INFO_INIT;
  for (uint32_t b = 0; noria_reducer_shard(reducer, b, &info) == NORIA_OK; ++b)
    places[info.bucket_offset] = info.gradient;
  return places;
}

TEST(ShardSteps, After_the_first_step_buckets_are_sent_as_they_came_and_shards_stay) {
  run_both(
      3, [](JobConfig& config) { config.order = NORIA_ORDER_ARRIVAL; },
      [](RankOfJob& mine) {
        Gradients gradients(mine);
        uint64_t total = 0, offsets[4] = {}, offset = 0;
        for (uint32_t id = 0; id < 4; ++id)
          expect_ok(noria_reducer_layout(mine.reducer, id, &offsets[id], &total));
        const auto places = shards_by_bucket(mine.reducer);
        EXPECT_EQ(gradients.ranges(kA).at(0).bucket, 2U);
        noria_step_report report = NORIA_STEP_REPORT_INIT;
        for (int step = 0; step < 3; ++step) {
          expect_ok(noria_step_begin(mine.reducer, 0));
          for (const uint32_t id : {kA, kB, kC, kD})
            gradients.give(id, static_cast<float>(static_cast<int>(id) + step + mine.rank));
          expect_ok(noria_step_end(mine.reducer, nullptr, &report));
          for (uint32_t id = 0; id < 4; ++id)
            gradients.expect_values(id, static_cast<float>(static_cast<int>(id) + step + 1));
          EXPECT_EQ(report.plan_version, 1U);
        }
        // Expect: A is sent first, and lies where it lay.
        EXPECT_EQ(gradients.ranges(kA).at(0).bucket, 0U);
        EXPECT_EQ(gradients.ranges(kD).empty() ? 2U : gradients.ranges(kD).at(0).bucket, 2U);
        EXPECT_EQ(shards_by_bucket(mine.reducer), places);
        for (uint32_t id = 0; id < 4; ++id) {
          const uint64_t before = total;
          expect_ok(noria_reducer_layout(mine.reducer, id, &offset, &total));
          EXPECT_EQ(offset, offsets[id]);
          EXPECT_EQ(total, before);
        }
      });
}

TEST(ShardSteps, Bytes_of_the_layout_are_those_of_a_plan_that_stays) {
  uint64_t of_reverse = 0, of_arrival = 0, offset = 0;
  const noria_unique_id id = make_job_id();
  JobConfig config = sharded(false);
  RankOfJob plain(id, 0, 1, four(), config);
  expect_ok(noria_reducer_seal(plain.reducer));
  expect_ok(noria_reducer_layout(plain.reducer, 0, &offset, &of_reverse));
  config.order = NORIA_ORDER_ARRIVAL;
  const noria_unique_id other = make_job_id();
  RankOfJob observed(other, 0, 1, four(), config);
  expect_ok(noria_reducer_seal(observed.reducer));
  expect_ok(noria_reducer_layout(observed.reducer, 0, &offset, &of_arrival));
  EXPECT_EQ(of_arrival, of_reverse);
}

// What a planned reducer learnt is for one with shards as well, which itself may not move them.
TEST(ShardSteps, A_plan_that_was_learnt_without_shards_is_taken_with_them) {
  const std::string path = testing::TempDir() + "/shard_steps_test.plan";
  const noria_unique_id first = make_job_id();
  run_ranks(2, [&](int32_t rank, Wire&) {
    RankOfJob mine(first, rank, 2, four(), {.plan = NORIA_PLAN_PLANNED});
    expect_ok(noria_reducer_seal(mine.reducer));
    mine.run_good_step(0, 1, 1);
    if (rank == 0) expect_ok(noria_reducer_save_plan(mine.reducer, path.c_str()));
  });
  const noria_unique_id second = make_job_id();
  run_ranks(2, [&](int32_t rank, Wire&) {
    RankOfJob mine(second, rank, 2, four(), sharded(true));
    expect_ok(noria_reducer_load_plan(mine.reducer, path.c_str()));
    expect_ok(noria_reducer_seal(mine.reducer));
    Gradients gradients(mine);
    for (int step = 0; step < 2; ++step) {
      expect_ok(noria_step_begin(mine.reducer, 0));
      gradients.give_all(static_cast<float>(step + mine.rank * 2));
      expect_ok(noria_step_end(mine.reducer, nullptr, nullptr));
      for (uint32_t id = 0; id < 4; ++id) gradients.expect_values(id, static_cast<float>(step + 1));
    }
  });
}

// ---- one tensor's part --------------------------------------------------------------------------

void expect_part(const RankOfJob& mine, const Gradients& gradients, uint32_t id, float value) {
  const void* result = &result;
  expect_ok(noria_grad_result(mine.reducer, id, nullptr, 0, &result));
  const auto ranges = gradients.ranges(id);
  EXPECT_EQ(result, ranges.empty() ? nullptr : ranges[0].gradient);
  gradients.expect_values(id, value);
}

TEST(ShardSteps, A_ranks_part_of_a_tensor_is_there_before_the_step_has_ended) {
  for (const uint32_t plan : {NORIA_PLAN_DDP, NORIA_PLAN_STRICT})
    run_both(
        3, [&](JobConfig& config) { config.plan = plan; },
        [&](RankOfJob& mine) {
          // Strict buckets hold pieces of A beside those of B.
          const bool is_whole = plan == NORIA_PLAN_DDP;
          Gradients gradients(mine);
          expect_ok(noria_step_begin(mine.reducer, 0));
          const void* result = nullptr;
          expect_failure(noria_grad_result(mine.reducer, kD, nullptr, 0, &result), NORIA_E_STATE,
                         "was not given its gradient");
          gradients.give(kD, static_cast<float>(mine.rank));
          gradients.give(kC, static_cast<float>(mine.rank + 1));
          gradients.give(kB, static_cast<float>(mine.rank + 2));
          // A is to come, so that what is read here was sent in the midst of the step.
          expect_part(mine, gradients, kD, 1);
          if (is_whole) expect_part(mine, gradients, kC, 2);
          if (is_whole) expect_part(mine, gradients, kB, 3);
          gradients.give(kA, static_cast<float>(mine.rank + 3));
          expect_part(mine, gradients, kA, 4);
          expect_ok(noria_step_end(mine.reducer, nullptr, nullptr));
          for (uint32_t id = 0; id < 4; ++id)
            expect_part(mine, gradients, id, static_cast<float>(4 - id));
        });
}

TEST(ShardSteps, A_part_that_others_hold_up_is_told_with_its_time_out) {
  run_both(2, as_it_is, [](RankOfJob& mine) {
    Gradients gradients(mine);
    expect_ok(noria_step_begin(mine.reducer, 0));
    gradients.give(kD, 1);
    const void* result = nullptr;
    expect_failure(noria_grad_result(mine.reducer, kD, nullptr, 100, &result), NORIA_E_TIMEOUT,
                   "its bucket waits here for 'c'");
    for (const uint32_t id : {kA, kB, kC}) gradients.give(id, 1);
    expect_ok(noria_step_end(mine.reducer, nullptr, nullptr));
  });
}

// ---- unused -------------------------------------------------------------------------------------

TEST(ShardSteps, With_keep_a_tensor_that_no_rank_used_has_no_result_and_stays_as_it_was) {
  run_both(
      2, [](JobConfig& config) { config.unused = NORIA_UNUSED_KEEP; },
      [](RankOfJob& mine) {
        Gradients gradients(mine);
        expect_ok(noria_step_begin(mine.reducer, 0));
        gradients.give_all(static_cast<float>(mine.rank * 2 + 1));
        expect_ok(noria_step_end(mine.reducer, nullptr, nullptr));
        expect_ok(noria_step_begin(mine.reducer, 0));
        if (mine.rank == 1) gradients.give(kB, 6);
        expect_ok(noria_step_end(mine.reducer, nullptr, nullptr));
        // Expect: of B, which one rank used, the average; of A nothing, so that an optimizer leaves
        // it alone.
        expect_part(mine, gradients, kB, 3);
        const void* result = &result;
        expect_ok(noria_grad_result(mine.reducer, kA, nullptr, 0, &result));
        EXPECT_EQ(result, nullptr);
        gradients.expect_values(kA, 2);
      });
}

// ---- what is not finite -------------------------------------------------------------------------

void checking(JobConfig& config) { config.nonfinite = NORIA_NONFINITE_ERROR; }

TEST(ShardSteps, Gradients_that_are_not_finite_are_named_on_all_ranks) {
  run_both(2, checking, [](RankOfJob& mine) {
    Gradients gradients(mine);
    expect_ok(noria_step_begin(mine.reducer, 0));
    for (const uint32_t id : {kA, kC, kD}) gradients.give(id, 1);
    gradients.give(kB, mine.rank == 1 ? std::numeric_limits<float>::infinity() : 1);
    expect_failure(
        noria_step_end(mine.reducer, nullptr, nullptr), NORIA_E_NONFINITE,
        "rank 1 gave values that are not finite in bucket 1, 'b' (1 of 4 tensors); skip");
    expect_ok(noria_reducer_reset(mine.reducer));
  });
}

TEST(ShardSteps, Sums_that_overflow_on_one_rank_are_named_on_all_with_its_shard) {
  run_both(3, checking, [](RankOfJob& mine) {
    Gradients gradients(mine);
    // Only the elements in the middle overflow, which are rank 1's.
    expect_ok(noria_step_begin(mine.reducer, 0));
    for (const uint32_t id : {kB, kC, kD}) gradients.give(id, 1);
    std::vector<float> a(mine.model[kA].numel, 1);
    a[a.size() / 2] = 3e38F;
    void* view = nullptr;
    uint64_t bytes = 0;
    const bool is_arena = noria_reducer_view(mine.reducer, kA, &view, &bytes) == NORIA_OK;
    if (is_arena) std::copy(a.begin(), a.end(), static_cast<float*>(view));
    expect_ok(noria_grad_ready(mine.reducer, kA, is_arena ? nullptr : a.data(), nullptr));
    expect_failure(noria_step_end(mine.reducer, nullptr, nullptr), NORIA_E_NONFINITE,
                   "step 0 failed: rank 1 has sums that are not finite in its shard of bucket 2, "
                   "'a' (1 of 4 tensors), though all gradients are; skip");
    EXPECT_EQ(last_error().find("rank 0"), std::string::npos) << last_error();
    expect_ok(noria_reducer_reset(mine.reducer));
    // Expect: the next step is as good as any.
    expect_ok(noria_step_begin(mine.reducer, 0));
    gradients.give_all(2);
    expect_ok(noria_step_end(mine.reducer, nullptr, nullptr));
    gradients.expect_values(kA, 2);
  });
}

}  // namespace
}  // namespace noria::test
