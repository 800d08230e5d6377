// What a reducer costs in memory, as the kernel counts it.
#include <gtest/gtest.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "tests/support/c_reducer.hpp"

namespace noria::test {
namespace {

constexpr uint64_t kTensors = 16, kNumel = 1 << 20;  // 64 MiB of float32
constexpr uint64_t kGradientBytes = kTensors * kNumel * sizeof(float);
// Slots, queues and what a process needs for its work.
constexpr uint64_t kBesides = 24 * 1024 * 1024;

// Pages that others map too count by their share, since peers map each other's arenas.
uint64_t proportional_bytes() {
  std::ifstream rollup("/proc/self/smaps_rollup");
  for (std::string word; rollup >> word;)
    if (uint64_t kib = 0; word == "Pss:" && rollup >> kib) return kib * 1024;
  ADD_FAILURE() << "no Pss in /proc/self/smaps_rollup";
  return 0;
}

std::vector<Tensor> model() {
  std::vector<Tensor> tensors;
  for (uint64_t i = 0; i < kTensors; ++i)
    tensors.push_back({"t" + std::to_string(i), NORIA_FLOAT32, kNumel});
  return tensors;
}

constexpr uint64_t kBucketBytes = 4 * 1024 * 1024;

void expect_growth(bool arena, uint64_t most, uint32_t max_in_flight = 0) {
  const noria_unique_id id = make_job_id();
  run_ranks(2, [&](int32_t rank, Wire&) {
    const uint64_t before = proportional_bytes();
    RankOfJob mine(id, rank, 2, model(),
                   {.arena = arena, .bucket_bytes = kBucketBytes, .max_in_flight = max_in_flight});
    expect_ok(noria_reducer_seal(mine.reducer));
    for (uint64_t step = 0; step < 3; ++step) {
      expect_ok(noria_step_begin(mine.reducer, 0));
      for (uint32_t t = kTensors; t-- > 0;) expect_ok(mine.give(t, step));
      expect_ok(noria_step_end(mine.reducer, nullptr, nullptr));
    }
    // Both still stand, so that each counts its share.
    expect_ok(noria_barrier(mine.comm, nullptr, nullptr));
    const uint64_t after = proportional_bytes();
    EXPECT_LE(after - before, most) << "before: " << before;
    if (rank == 0)  // for perf/RESULTS.md
      std::printf("rank 0 grew by %.1f MB\n", static_cast<double>(after - before) * 1e-6);
    std::fflush(stdout);
    expect_ok(noria_barrier(mine.comm, nullptr, nullptr));
  });
}

TEST(Reducer_memory, C40_In_the_arena_gradients_are_held_once_however_many_buckets_overlap) {
  expect_growth(true, kGradientBytes + kBesides);
}

TEST(Reducer_memory, C40_Copies_are_held_once_beside_the_callers_own) {
  expect_growth(false, 2 * kGradientBytes + kBesides);
}

TEST(Reducer_memory, C40_Copies_are_those_of_the_buckets_in_flight_where_that_is_asked) {
  for (const uint32_t buckets : {1U, 3U})
    expect_growth(false, kGradientBytes + buckets * kBucketBytes + kBesides, buckets);
}

}  // namespace
}  // namespace noria::test
