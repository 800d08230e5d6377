#include "verbs/soft/receive_room.hpp"

#include <gtest/gtest.h>

namespace noria::soft {
namespace {

constexpr uint32_t kMost = 257;

TEST(ReceiveRoom, Is_that_of_the_shortest_receive) {
  ReceiveRoom room(kMost);
  EXPECT_EQ(room.add(0, 0, kMost), kMost);
  EXPECT_EQ(room.add(1, 0, 100), 100u);
  EXPECT_EQ(room.add(2, 0, 200), 100u);
  EXPECT_EQ(room.add(3, 0, 0), 0u);
}

TEST(ReceiveRoom, Rises_once_all_are_used_up_that_were_posted_with_the_shortest) {
  ReceiveRoom room(kMost);
  // Numbers go on where another queue pair stopped.
  EXPECT_EQ(room.add(70, 70, 10), 10u);
  EXPECT_EQ(room.add(71, 70, 50), 10u);
  // The short one is used up.
  EXPECT_EQ(room.add(72, 71, 60), 50u);
  EXPECT_EQ(room.add(73, 71, 90), 50u);
  // So are 71 and 72; of what came after 72 no more is kept than the shortest.
  EXPECT_EQ(room.add(74, 73, 80), 60u);
  EXPECT_EQ(room.add(75, 75, 200), 80u);
}

TEST(ReceiveRoom, Promises_nothing_of_receives_that_are_in_doubt) {
  ReceiveRoom room(kMost);
  EXPECT_EQ(room.add(0, 0, 100), 100u);
  EXPECT_EQ(room.add(1, 0, 100), 100u);
  room.doubt(2);
  EXPECT_EQ(room.add(2, 0, 100), 0u);
  EXPECT_EQ(room.add(3, 1, 100), 0u);
  // Those two are used up.
  EXPECT_EQ(room.add(4, 2, 120), 100u);
}

}  // namespace
}  // namespace noria::soft
