#include "verbs/soft/changed_qps.hpp"

#include <gtest/gtest.h>

#include <vector>

namespace noria::soft {
namespace {

struct Taken {
  size_t word;
  uint64_t bits;
  bool operator==(const Taken&) const = default;
};

std::vector<Taken> take_all(ChangedQps& changed) {
  std::vector<Taken> all;
  changed.take([&](size_t word, uint64_t bits) { all.push_back({word, bits}); });
  return all;
}

TEST(Changed_qps, Nothing_is_taken_where_nothing_was_noted) {
  ChangedQps changed;
  EXPECT_TRUE(take_all(changed).empty());
}

TEST(Changed_qps, What_was_noted_is_taken_once_however_often_it_was_noted) {
  ChangedQps changed;
  for (const uint32_t index : {0u, 5u, 5u, 64u, kMaxQps - 1}) changed.note(index);
  const std::vector<Taken> expected{{0, 1 | 1 << 5}, {1, 1}, {kQpWords - 1, uint64_t{1} << 63}};
  EXPECT_EQ(take_all(changed), expected);
  EXPECT_TRUE(take_all(changed).empty());
  changed.note(5);
  EXPECT_EQ(take_all(changed), (std::vector<Taken>{{0, 1 << 5}}));
}

TEST(Changed_qps, What_is_noted_while_others_are_taken_comes_now_or_the_next_time) {
  ChangedQps changed;
  changed.note(1);
  changed.note(200);
  uint64_t count = 0;
  const auto each = [&](size_t, uint64_t) {
    ++count;
    if (count == 1) changed.note(2);
  };
  changed.take(each);
  changed.take(each);
  EXPECT_EQ(count, 3U);
}

}  // namespace
}  // namespace noria::soft
