// The ring's arithmetic without a ring: what every rank does at every step, for 1 to 9 ranks.

#include "bucketing/ring_schedule.hpp"

#include <gtest/gtest.h>

#include <set>
#include <utility>
#include <vector>

namespace noria::bucketing {
namespace {

TEST(PipelineWalkTest, Visits_every_item_once_by_ticks_and_the_oldest_segment_first) {
  for (uint32_t segments = 0; segments <= 12; ++segments)
    for (uint32_t steps = 1; steps <= 8; ++steps) {
      std::vector<std::pair<uint32_t, uint32_t>> expected;  // segment, step
      for (uint32_t tick = 0; segments != 0 && tick < segments + steps - 1; ++tick)
        for (uint32_t k = 0; k < segments; ++k)
          if (tick >= k && tick - k < steps) expected.emplace_back(k, tick - k);

      PipelineWalk walk(segments, steps);
      EXPECT_EQ(walk.total(), expected.size());
      for (const auto& [segment, step] : expected) {
        ASSERT_FALSE(walk.is_done());
        EXPECT_EQ(walk.segment(), segment);
        EXPECT_EQ(walk.step(), step);
        walk.next();
      }
      // Expect: nothing beyond.
      EXPECT_TRUE(walk.is_done()) << segments << " segments, " << steps << " steps";
    }
}

TEST(PipelineWalkTest, A_segment_is_past_its_earlier_step_before_the_later_one_comes) {
  PipelineWalk walk(5, 4);
  std::vector<uint32_t> steps_seen(5, 0);
  for (; !walk.is_done(); walk.next()) EXPECT_EQ(walk.step(), steps_seen[walk.segment()]++);
}

TEST(PipelineWalkTest, Groups_step_together_one_behind_the_other) {
  for (uint32_t segments = 0; segments <= 12; ++segments)
    for (uint32_t steps = 1; steps <= 5; ++steps)
      for (uint32_t group = 1; group <= 5; ++group) {
        PipelineWalk walk = PipelineWalk::in_groups(segments, steps, group);
        for (uint32_t first = 0; first < segments; first += group)
          for (uint32_t step = 0; step < steps; ++step)
            for (uint32_t k = first; k < first + group && k < segments; ++k, walk.next()) {
              ASSERT_FALSE(walk.is_done());
              ASSERT_EQ(walk.segment(), k);
              ASSERT_EQ(walk.step(), step);
            }
        // Expect: nothing beyond.
        EXPECT_TRUE(walk.is_done()) << segments << " segments, " << steps << " steps";
      }
}

class RingPlaceTest : public testing::TestWithParam<uint32_t> {
 protected:
  uint32_t size() const { return GetParam(); }
  RingPlace at(uint32_t rank) const { return {.rank = rank, .size = size()}; }
};
INSTANTIATE_TEST_SUITE_P(Ranks, RingPlaceTest, testing::Range(1U, 10U));

TEST_P(RingPlaceTest, Neighbours_see_each_other) {
  for (uint32_t rank = 0; rank < size(); ++rank) {
    EXPECT_EQ(at(at(rank).left()).right(), rank);
    EXPECT_EQ(at(at(rank).right()).left(), rank);
  }
}

TEST_P(RingPlaceTest, Both_ends_of_each_transfer_mean_the_same_chunk) {
  for (uint32_t rank = 0; rank < size(); ++rank)
    for (uint32_t step = 0; step + 1 < size(); ++step) {
      EXPECT_EQ(at(rank).fetched_chunk(step), at(at(rank).left()).offered_chunk(step));
      EXPECT_EQ(at(rank).received_chunk(step), at(at(rank).left()).sent_chunk(step));
    }
}

TEST_P(RingPlaceTest, Every_chunk_gathers_every_rank_once_in_ring_order_then_reaches_all) {
  const uint32_t n = size();
  using Ranks = std::vector<uint32_t>;
  // partial[rank][chunk]: whose input is in it, in order.
  std::vector<std::vector<Ranks>> partial(n, std::vector<Ranks>(n));
  for (uint32_t rank = 0; rank < n; ++rank)
    for (uint32_t chunk = 0; chunk < n; ++chunk) partial[rank][chunk] = {rank};

  for (uint32_t step = 0; step + 1 < n; ++step) {
    auto next = partial;
    for (uint32_t rank = 0; rank < n; ++rank) {
      const uint32_t chunk = at(rank).fetched_chunk(step);
      // What is offered beyond step 0 is the result of the step before.
      if (step != 0) {
        EXPECT_EQ(at(rank).offered_chunk(step), at(rank).fetched_chunk(step - 1));
      }
      next[rank][chunk] = partial[at(rank).left()][chunk];
      next[rank][chunk].push_back(rank);
    }
    partial = next;
  }
  // Expect: what a rank finishes is of its own block.
  for (uint32_t rank = 0; rank < n; ++rank)
    EXPECT_EQ(at(rank).block_of(at(rank).sent_chunk(0)), rank);
  std::vector<std::set<uint32_t>> finished(n);  // chunks that a rank has in their final form
  for (uint32_t rank = 0; rank < n; ++rank) {
    const uint32_t own = at(rank).sent_chunk(0);
    ASSERT_EQ(partial[rank][own].size(), n);
    for (uint32_t i = 0; i < n; ++i) EXPECT_EQ(partial[rank][own][i], (own + i) % n);
    finished[rank].insert(own);
  }
  for (uint32_t step = 0; step + 1 < n; ++step) {
    auto next = finished;
    for (uint32_t rank = 0; rank < n; ++rank) {
      ASSERT_TRUE(finished[rank].contains(at(rank).sent_chunk(step)));
      next[at(rank).right()].insert(at(rank).sent_chunk(step));
    }
    finished = next;
  }
  // Expect: every rank has every chunk.
  for (const auto& chunks : finished) EXPECT_EQ(chunks.size(), n);
}

}  // namespace
}  // namespace noria::bucketing
