#include "bucketing/bucket_slots.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>
#include <thread>

#include "bucketing/kernels.hpp"
#include "bucketing/ring_schedule.hpp"

namespace noria::bucketing {
namespace {

// ---- how many ----------------------------------------------------------------------------------

// A ring whose ranks are all as far, and which does what can be done: does the last bucket end, if
// a bucket is filled when the one before it in its slot has ended?
bool ends(const std::vector<uint32_t>& segments, uint32_t slots, uint32_t ranks) {
  std::vector<uint32_t> first(segments.size() + 1, 0);
  std::partial_sum(segments.begin(), segments.end(), first.begin() + 1);
  const uint32_t total = first.back(), steps = ranks - 1;
  PipelineWalk reducing(total, steps), gathering(total, steps);
  std::vector<uint32_t> reduced(total, 0), gathered(total, 0);
  size_t ended = 0;
  for (bool moved = true; moved;) {
    moved = false;
    while (ended < segments.size() &&
           std::all_of(gathered.begin() + first[ended], gathered.begin() + first[ended + 1],
                       [&](uint32_t done) { return done == steps; }))
      ++ended;
    const uint32_t ready = first[std::min<size_t>(ended + slots, segments.size())];
    while (!reducing.is_done() && (reducing.step() != 0 || reducing.segment() < ready)) {
      ++reduced[reducing.segment()];
      reducing.next();
      moved = true;
    }
    while (!gathering.is_done() &&
           (gathering.step() != 0 || reduced[gathering.segment()] == steps)) {
      ++gathered[gathering.segment()];
      gathering.next();
      moved = true;
    }
  }
  return ended == segments.size();
}

TEST(FewestSlots, Are_those_wanted_in_a_ring_of_two_or_three) {
  for (const uint32_t ranks : {2U, 3U})
    for (uint32_t wanted = 1; wanted < 8; ++wanted) {
      const std::vector<uint32_t> segments(20, 1);
      EXPECT_EQ(fewest_slots(segments, wanted, ranks), wanted);
      EXPECT_TRUE(ends(segments, wanted, ranks));
    }
}

TEST(FewestSlots, Are_as_many_as_a_longer_ring_needs_to_go_on_and_no_more) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 500; ++round) {
    std::vector<uint32_t> segments(1 + random() % 30);
    for (uint32_t& some : segments) some = static_cast<uint32_t>(random() % 8);  // 0: no bytes
    const auto ranks = static_cast<uint32_t>(2 + random() % 10);
    const uint32_t slots = fewest_slots(segments, 1, ranks);
    EXPECT_TRUE(ends(segments, slots, ranks)) << slots << " slots, " << ranks << " ranks";
    if (slots > 1) {
      // Expect: with one fewer some bucket waits for one that waits for it.
      EXPECT_FALSE(ends(segments, slots - 1, ranks)) << slots << " slots, " << ranks << " ranks";
    }
  }
}

TEST(FewestSlots, More_than_there_are_buckets_is_no_less) {
  EXPECT_EQ(fewest_slots({}, 3, 2), 3U);
  EXPECT_EQ(fewest_slots(std::vector<uint32_t>{1, 1}, 3, 8), 3U);
}

// ---- what lies where ---------------------------------------------------------------------------

// Tensors, of which the strict plan splits the large ones over buckets, in slots.
struct Model {
  std::vector<PlanTensor> tensors;
  Plan plan;
  std::vector<Segment> segments;
  std::unique_ptr<Readiness> readiness;

  explicit Model(uint64_t seed) {
    std::mt19937_64 random(seed);
    tensors.resize(1 + random() % 30);
    for (PlanTensor& tensor : tensors)
      tensor = {random() % 5 == 0 ? 0 : random() % 200'000,
                random() % 3 == 0 ? NORIA_FLOAT64 : NORIA_BFLOAT16};
    plan = plan_buckets(PlanKind::strict, tensors, reverse_registration(tensors.size()),
                        {.first_bucket_bytes = 4'096, .bucket_bytes = 150'000});
    std::vector<PartShape> shapes;
    for (const Bucket& bucket : plan.buckets)
      shapes.push_back({bucket.numel, dtype_bytes(bucket.dtype)});
    segments = cut_segments(shapes, 2);
    readiness = std::make_unique<Readiness>(plan, tensors, segments);
  }
  uint64_t largest() const {
    uint64_t bytes = 0;
    for (const Bucket& bucket : plan.buckets) bytes = std::max(bytes, bucket.bytes);
    return bytes;
  }
};

TEST(BucketSlots, Take_no_more_than_so_many_of_the_largest_bucket) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Model model(seed);
    for (const uint32_t number : {1U, 2U, 3U}) {
      const BucketSlots slots(model.plan, number);
      EXPECT_LE(slots.bytes(), number * align_up(model.largest(), kBucketAlign));
      for (uint32_t b = 0; b < model.plan.buckets.size(); ++b) {
        EXPECT_LE(slots.offset_of(b) + model.plan.buckets[b].bytes, slots.bytes());
        EXPECT_EQ(slots.offset_of(b) % kBucketAlign, 0U);
        EXPECT_EQ(slots.offset_of(b), slots.offset_of(b + number));
      }
    }
  }
}

TEST(BucketSlots, A_tensors_pieces_are_what_its_buckets_hold_of_it) {
  for (uint64_t seed = 0; seed < 50; ++seed) {
    const Model model(seed);
    BucketSlots slots(model.plan, 2);
    slots.cut(model.plan, *model.readiness);
    std::vector<size_t> in_bucket(model.plan.buckets.size(), 0);
    for (uint32_t id = 0; id < model.tensors.size(); ++id) {
      const Readiness::Home& home = model.readiness->home(id);
      uint32_t stretch = home.first_stretch;
      for (const BucketSlots::Piece& piece : slots.pieces_of_tensor(id)) {
        EXPECT_EQ(piece.tensor, id);
        EXPECT_EQ(piece.first_stretch, stretch);
        stretch = piece.end_stretch;
        ++in_bucket[piece.bucket];
        EXPECT_GT(part_in_bucket(model.plan.buckets[piece.bucket], home.range()).bytes(), 0U);
      }
      EXPECT_EQ(stretch, home.end_stretch());
    }
    for (uint32_t b = 0; b < model.plan.buckets.size(); ++b) {
      size_t seen = 0;
      slots.for_each(b, [&](const BucketSlots::Piece& piece) {
        EXPECT_EQ(piece.bucket, b);
        ++seen;
      });
      EXPECT_EQ(seen, in_bucket[b]);
    }
  }
}

// ---- who fills ---------------------------------------------------------------------------------

TEST(BucketSlots, What_comes_early_is_filled_in_by_whoever_admits_its_bucket) {
  const Model model(3);
  const auto buckets = static_cast<uint32_t>(model.plan.buckets.size());
  ASSERT_GT(buckets, 3U);
  BucketSlots slots(model.plan, 2);
  slots.cut(model.plan, *model.readiness);
  for (int step = 0; step < 2; ++step) {
    slots.restart();
    std::vector<int> filled(buckets, 0);
    std::vector<int> wanted(buckets, 0);
    for (uint32_t id = 0; id < model.tensors.size(); ++id)
      for (BucketSlots::Piece& piece : slots.pieces_of_tensor(id)) {
        ++wanted[piece.bucket];
        const bool is_now = slots.offer(piece, nullptr, false);
        EXPECT_EQ(is_now, piece.bucket < 2);
        filled[piece.bucket] += is_now ? 1 : 0;
      }
    for (uint32_t b = 2; b < buckets; ++b)
      slots.admit(b + 1, [&](const BucketSlots::Piece& piece) {
        EXPECT_EQ(piece.bucket, b);
        ++filled[b];
      });
    EXPECT_EQ(filled, wanted);
  }
}

TEST(BucketSlots, Each_piece_is_filled_once_whoever_comes_first) {
  const Model model(3);
  const auto buckets = static_cast<uint32_t>(model.plan.buckets.size());
  BucketSlots slots(model.plan, 1);
  slots.cut(model.plan, *model.readiness);
  for (int round = 0; round < 200; ++round) {
    slots.restart();
    std::atomic<uint32_t> filled{0}, wanted{0};
    std::vector<std::thread> threads;
    for (uint32_t t = 0; t < 3; ++t)
      threads.emplace_back([&, t] {
        for (auto id = t; id < model.tensors.size(); id += 3)
          for (BucketSlots::Piece& piece : slots.pieces_of_tensor(id)) {
            wanted.fetch_add(1);
            if (slots.offer(piece, nullptr, true)) filled.fetch_add(1);
          }
      });
    for (uint32_t b = 1; b < buckets; ++b)
      slots.admit(b + 1, [&](const BucketSlots::Piece& piece) {
        EXPECT_TRUE(piece.is_zero);
        filled.fetch_add(1);
      });
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(filled.load(), wanted.load());
  }
}

}  // namespace
}  // namespace noria::bucketing
