#include "bucketing/readiness.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

#include "bucketing/kernels.hpp"

namespace noria::bucketing {
namespace {

// Buckets of the plan and, as in a step, one part of one int64 behind them.
struct Cut {
  std::vector<PlanTensor> tensors;
  Plan plan;
  std::vector<Segment> segments;

  Cut(std::vector<PlanTensor> of, const PlanCaps& caps, uint32_t ranks,
      PlanKind kind = PlanKind::ddp)
      : tensors(std::move(of)),
        plan(plan_buckets(kind, tensors, reverse_registration(tensors.size()), caps)) {
    std::vector<PartShape> shapes;
    for (const Bucket& bucket : plan.buckets)
      shapes.push_back({bucket.numel, dtype_bytes(bucket.dtype)});
    shapes.push_back({1, 8});
    segments = cut_segments(shapes, ranks);
  }
  Readiness readiness() const { return Readiness(plan, tensors, segments); }
};

uint32_t pending(Readiness& readiness, size_t segment) {
  return readiness.pending()[segment].load(std::memory_order_acquire);
}

void give_all_of(Readiness& readiness, uint32_t id) {
  ASSERT_EQ(readiness.fire(id), Readiness::Fire::last);
  const Readiness::Home& home = readiness.home(id);
  for (uint32_t s = home.first_stretch; s < home.end_stretch(); ++s) readiness.take(s);
}

std::vector<PlanTensor> random_tensors(std::mt19937_64& random) {
  std::vector<PlanTensor> tensors(1 + random() % 30);
  for (PlanTensor& tensor : tensors)
    tensor = {random() % 5 == 0 ? 0 : random() % 200'000,
              random() % 3 == 0 ? NORIA_FLOAT64 : NORIA_BFLOAT16};
  return tensors;
}

// The segment's place in the arena, counted from the plan alone.
ArenaRange range_of(const Cut& cut, const Segment& segment) {
  const Bucket& bucket = cut.plan.buckets[segment.part];
  const uint64_t element = dtype_bytes(bucket.dtype);
  const uint64_t begin = bucket.arena_offset + segment.first * element;
  return {.begin = begin, .end = begin + segment.count * element};
}

TEST(Readiness, Counters_are_the_overlaps_of_tensors_and_segments) {
  std::mt19937_64 random(7);
  for (unsigned round = 0; round < 200; ++round) {
    const Cut cut(random_tensors(random),
                  {.first_bucket_bytes = 100'000,
                   .bucket_bytes = round % 3 == 0 ? 300'000 : 2_MiB,
                   .last_bucket_bytes = 5'000},
                  1 + round % 4, round % 2 == 0 ? PlanKind::ddp : PlanKind::strict);
    Readiness readiness = cut.readiness();
    for (size_t s = 0; s + 1 < cut.segments.size(); ++s) {
      const ArenaRange place = range_of(cut, cut.segments[s]);
      uint32_t overlapping = 0;
      for (uint32_t id = 0; id < cut.tensors.size(); ++id) {
        const ArenaRange tensor = readiness.home(id).range();
        EXPECT_EQ(tensor.begin, cut.plan.offsets[id]);
        if (std::max(tensor.begin, place.begin) < std::min(tensor.end, place.end)) ++overlapping;
      }
      EXPECT_EQ(pending(readiness, s), overlapping);
      EXPECT_GT(overlapping, 0u);
    }
    EXPECT_EQ(pending(readiness, cut.segments.size() - 1), 1u);

    // Expect: a tensor's stretches are the segments that it overlaps, in the order of the arena.
    for (uint32_t id = 0; id < cut.tensors.size(); ++id) {
      const Readiness::Home& home = readiness.home(id);
      uint64_t done = home.offset;
      for (uint32_t s = home.first_stretch; s < home.end_stretch(); ++s) {
        EXPECT_GT(readiness.stretch_end(s), done);
        done = readiness.stretch_end(s);
        const Bucket& bucket = cut.plan.buckets[readiness.bucket_of(s)];
        EXPECT_GT(done, bucket.arena_offset);
        EXPECT_LE(done, bucket.arena_offset + bucket.bytes);
      }
      EXPECT_GE(done, home.range().end);
      EXPECT_EQ(home.stretches == 0, home.bytes == 0);
    }
  }
}

TEST(Readiness, Pieces_of_a_split_tensor_are_found_though_another_bucket_is_sent_between_them) {
  // The tensor 2 ends in a bucket that tensor 0 completes, after the f64 tensor.
  const Cut cut({{64, NORIA_FLOAT32}, {16, NORIA_FLOAT64}, {224, NORIA_FLOAT32}},
                {.first_bucket_bytes = 512, .bucket_bytes = 768, .last_bucket_bytes = 128}, 2,
                PlanKind::strict);
  ASSERT_EQ(cut.plan.buckets.size(), 4u);
  ASSERT_EQ(cut.plan.buckets[1].dtype, NORIA_FLOAT64);
  Readiness readiness = cut.readiness();
  EXPECT_EQ(pending(readiness, 2), 2u);
  give_all_of(readiness, 2);

  // Expect: its first piece is ready, its last waits for tensor 0, and the f64 bucket is untouched.
  EXPECT_EQ(pending(readiness, 0), 0u);
  EXPECT_EQ(pending(readiness, 1), 1u);
  EXPECT_EQ(pending(readiness, 2), 1u);
}

TEST(Readiness, A_segment_is_ready_with_its_last_tensor_in_any_order) {
  const Cut cut(std::vector<PlanTensor>(50, PlanTensor{30'000, NORIA_FLOAT32}), {}, 2);
  Readiness readiness = cut.readiness();
  std::vector<uint32_t> order(50);
  std::iota(order.begin(), order.end(), 0);
  std::shuffle(order.begin(), order.end(), std::mt19937_64(1));
  std::vector<unsigned> ready(cut.segments.size(), 0);
  for (const uint32_t id : order) {
    ASSERT_EQ(readiness.fire(id), Readiness::Fire::last);
    const Readiness::Home& home = readiness.home(id);
    for (uint32_t s = home.first_stretch; s < home.end_stretch(); ++s)
      if (readiness.take(s)) ++ready[s];
  }

  // Expect: each told ready once, but for the verdict's, which no tensor completes.
  const size_t verdict = ready.size() - 1;
  for (size_t s = 0; s < verdict; ++s) {
    EXPECT_EQ(ready[s], 1u);
    EXPECT_EQ(pending(readiness, s), 0u);
  }
  EXPECT_EQ(pending(readiness, verdict), 1u);
  EXPECT_TRUE(readiness.take(static_cast<uint32_t>(verdict)));
}

const std::vector<PlanTensor> kThree{{5, NORIA_FLOAT32}, {0, NORIA_FLOAT32}, {1, NORIA_INT32}};

TEST(Readiness, Late_and_owed_are_told_and_forgotten_at_the_restart) {
  const Cut cut(kThree, {}, 2);
  Readiness readiness = cut.readiness();
  give_all_of(readiness, 0);
  EXPECT_EQ(readiness.fire(0), Readiness::Fire::late);
  EXPECT_EQ(readiness.fire(0), Readiness::Fire::late);
  EXPECT_TRUE(readiness.is_late(0));
  EXPECT_EQ(readiness.fires(0), 1);
  // The empty tensor is owed too.
  for (const uint32_t id : {1U, 2U}) EXPECT_EQ(readiness.owed(id), 1);

  readiness.restart();
  for (uint32_t id = 0; id < 3; ++id) {
    EXPECT_FALSE(readiness.is_late(id));
    EXPECT_EQ(readiness.owed(id), 1);
    give_all_of(readiness, id);
    EXPECT_EQ(readiness.owed(id), 0);
  }
}

TEST(Readiness, A_tensor_is_given_with_the_last_of_its_fires) {
  const Cut cut(kThree, {}, 2);
  Readiness readiness = cut.readiness();
  readiness.expect(0, 3);
  readiness.expect(1, 0);
  readiness.expect(2, Readiness::kUncertain);
  readiness.restart();
  EXPECT_EQ(readiness.fire(0), Readiness::Fire::early);
  EXPECT_EQ(readiness.fire(0), Readiness::Fire::early);
  EXPECT_EQ(readiness.owed(0), 1);
  EXPECT_EQ(readiness.fires(0), 2);
  EXPECT_EQ(readiness.fire(0), Readiness::Fire::last);
  EXPECT_EQ(readiness.fire(1), Readiness::Fire::late);
  for (int i = 0; i < 1'000; ++i) ASSERT_EQ(readiness.fire(2), Readiness::Fire::early);
  EXPECT_EQ(readiness.fires(2), 1'000);
}

TEST(Readiness, A_closed_tensor_keeps_its_count_and_takes_no_more) {
  const Cut cut(kThree, {}, 2);
  Readiness readiness = cut.readiness();
  readiness.expect(0, 3);
  readiness.restart();
  EXPECT_EQ(readiness.fire(0), Readiness::Fire::early);
  EXPECT_TRUE(readiness.close(0));
  EXPECT_TRUE(readiness.is_closed(0));
  EXPECT_EQ(readiness.owed(0), 0);
  EXPECT_EQ(readiness.fires(0), 1);
  EXPECT_FALSE(readiness.is_late(0));
  EXPECT_EQ(readiness.fire(0), Readiness::Fire::late);
  EXPECT_TRUE(readiness.is_late(0));
  EXPECT_FALSE(readiness.close(0));
  // One that was given cannot be closed.
  give_all_of(readiness, 2);
  EXPECT_FALSE(readiness.close(2));
  EXPECT_TRUE(readiness.is_late(2));
}

TEST(Readiness, One_of_which_nothing_is_expected_is_closed_once) {
  const Cut cut(kThree, {}, 2);
  Readiness readiness = cut.readiness();
  readiness.expect(0, 0);
  readiness.restart();
  EXPECT_FALSE(readiness.is_closed(0));
  EXPECT_TRUE(readiness.close(0));
  EXPECT_TRUE(readiness.is_closed(0));
  EXPECT_EQ(readiness.fires(0), 0);
  EXPECT_FALSE(readiness.is_late(0));
  EXPECT_FALSE(readiness.close(0));
  EXPECT_TRUE(readiness.is_late(0));
  // One that came against expectation cannot be closed.
  readiness.restart();
  EXPECT_EQ(readiness.fire(0), Readiness::Fire::late);
  EXPECT_FALSE(readiness.close(0));
}

TEST(Readiness, No_tensors_leave_only_the_verdict) {
  const Cut cut({}, {}, 4);
  Readiness readiness = cut.readiness();
  ASSERT_EQ(cut.segments.size(), 1u);
  EXPECT_EQ(pending(readiness, 0), 1u);
}

TEST(Readiness, Bytes_of_all_threads_are_seen_by_who_sees_the_segment_ready) {
  constexpr unsigned kThreads = 8;
  constexpr uint32_t kTensors = 400;
  const Cut cut(std::vector<PlanTensor>(kTensors, PlanTensor{1'000, NORIA_INT32}), {}, 2);
  Readiness readiness = cut.readiness();
  std::vector<int32_t> arena(cut.plan.arena_bytes / sizeof(int32_t));
  std::vector<std::thread> threads;
  for (unsigned t = 0; t < kThreads; ++t)
    threads.emplace_back([&, t] {
      for (uint32_t id = t; id < kTensors; id += kThreads) {
        std::fill_n(arena.begin() + static_cast<long>(readiness.home(id).offset / 4), 1'000,
                    static_cast<int32_t>(id));
        give_all_of(readiness, id);
      }
    });

  // The reader follows the segments in order, as the ring does, while the threads give.
  for (size_t s = 0; s + 1 < cut.segments.size(); ++s) {
    for (unsigned spins = 0; pending(readiness, s) != 0; ++spins) {
      ASSERT_LT(spins, 100'000'000u);
      std::this_thread::yield();
    }
    const Segment& segment = cut.segments[s];
    const uint64_t base = cut.plan.buckets[segment.part].arena_offset / 4 + segment.first;
    for (uint64_t i = base; i < base + segment.count; i += 97) ASSERT_GE(arena[i], 0);
  }
  for (std::thread& thread : threads) thread.join();
  for (uint32_t id = 0; id < kTensors; ++id)
    EXPECT_EQ(arena[readiness.home(id).offset / 4], static_cast<int32_t>(id));
}

}  // namespace
}  // namespace noria::bucketing
