#include "verbs/soft/store_choice.hpp"

#include <gtest/gtest.h>

namespace noria::soft {
namespace {

using Way = StoreChoice::Way;

// What 16 KiB cost, plain and streamed.
struct Machine {
  Nanoseconds plain, streamed;
  Nanoseconds of(Way way) const { return way == Way::plain ? plain : streamed; }
};
constexpr Machine kSharedCache{600, 500};
constexpr Machine kNoSharedCache{8000, 600};

void copy(StoreChoice& choice, const Machine& machine, uint32_t copies) {
  for (uint32_t i = 0; i < copies; ++i) {
    const Way way = choice.next_timed();
    choice.took(way, machine.of(way));
  }
}

TEST(StoreChoice, Plain_where_cores_share_a_cache_and_streamed_where_they_do_not) {
  StoreChoice near, far;

  copy(near, kSharedCache, 1000);
  copy(far, kNoSharedCache, 1000);

  // Expect:
  EXPECT_EQ(near.way(), Way::plain);
  EXPECT_EQ(far.way(), Way::streamed);
}

TEST(StoreChoice, Streams_until_a_copy_was_timed) {
  StoreChoice choice;
  EXPECT_EQ(choice.way(), Way::streamed);

  copy(choice, kSharedCache, 1);

  // Expect:
  EXPECT_EQ(choice.way(), Way::plain);
}

TEST(StoreChoice, Follows_a_machine_that_changes) {
  StoreChoice choice;
  copy(choice, kSharedCache, 1000);

  // Expect: dear copies are noticed at once, since each is one; cheap ones by the probes.
  copy(choice, kNoSharedCache, 16);
  EXPECT_EQ(choice.way(), Way::streamed);
  copy(choice, kNoSharedCache, 1000);
  EXPECT_EQ(choice.way(), Way::streamed);
  copy(choice, kSharedCache, 32 * StoreChoice::kProbeEvery);
  EXPECT_EQ(choice.way(), Way::plain);
}

TEST(StoreChoice, A_copy_that_lost_its_core_changes_nothing) {
  StoreChoice choice;
  copy(choice, kSharedCache, 1000);

  choice.took(Way::plain, 4'000'000);

  // Expect:
  EXPECT_EQ(choice.way(), Way::plain);
}

TEST(StoreChoice, The_other_way_is_tried_once_in_a_while) {
  StoreChoice choice;
  copy(choice, kSharedCache, 1000);

  uint32_t tried = 0;
  for (uint32_t i = 0; i < 10 * StoreChoice::kProbeEvery; ++i) {
    const Way way = choice.next_timed();
    tried += way != choice.way() ? 1 : 0;
    choice.took(way, kSharedCache.of(way));
  }

  // Expect:
  EXPECT_EQ(tried, 10u);
}

}  // namespace
}  // namespace noria::soft
