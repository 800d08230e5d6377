#include "base/shared_map.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <optional>
#include <random>
#include <vector>

namespace noria {
namespace {

// A key that counts how often two of its kind are compared.
struct Key {
  uint64_t number = 0;
  static uint64_t comparisons;

  friend bool operator<(const Key& a, const Key& b) {
    ++comparisons;
    return a.number < b.number;
  }
};
uint64_t Key::comparisons = 0;

using Map = SharedMap<Key, std::optional<uint64_t>>;

// What a balanced tree of `keys` takes at most: twice the logarithm, and one to be sure.
uint64_t most_comparisons(size_t keys) {
  uint64_t logarithm = 0;
  while (size_t{1} << logarithm <= keys) ++logarithm;
  return 2 * logarithm + 1;
}

TEST(Shared_map, Ten_thousand_keys_take_a_few_comparisons_more_than_ten) {
  std::vector<uint64_t> numbers(10'000);
  std::iota(numbers.begin(), numbers.end(), 0);
  const std::vector<uint64_t> ascending = numbers;
  std::shuffle(numbers.begin(), numbers.end(), std::mt19937(20260101));
  // In order, as an allocator gives addresses, and in none.
  for (const std::vector<uint64_t>& order : {ascending, numbers}) {
    Map map;
    std::vector<Map::Share> shares;
    const auto expect_few = [&](const char* what) {
      EXPECT_LE(Key::comparisons, most_comparisons(shares.size())) << what << shares.size();
      Key::comparisons = 0;
    };
    for (const uint64_t number : order) {
      Key::comparisons = 0;
      shares.push_back(map.add({number}, number));
      expect_few("add to ");
      Map::Share again = map.find({number});
      expect_few("find in ");
      EXPECT_EQ(**again, number);
      again = Map::Share();
      EXPECT_EQ(Key::comparisons, 0u) << "others hold it still: nothing is looked up";
      EXPECT_FALSE(map.find({number + order.size()}));
      expect_few("find none in ");
    }
    while (!shares.empty()) {
      Key::comparisons = 0;
      const uint64_t bound = most_comparisons(shares.size());
      shares.pop_back();
      EXPECT_LE(Key::comparisons, bound) << "give back, of " << shares.size();
    }
    EXPECT_TRUE(map.empty());
  }
}

TEST(Shared_map, The_value_that_came_first_serves_all_until_the_last_lets_go) {
  Map map;
  Map::Share first = map.add({1}, 10);
  Map::Share second = map.add({1}, 20);
  EXPECT_EQ(**second, 10u);
  first = Map::Share();
  EXPECT_EQ(**map.find({1}), 10u);
  second = Map::Share();
  EXPECT_FALSE(map.find({1}));
  EXPECT_EQ(**map.add({1}, 30), 30u);
}

}  // namespace
}  // namespace noria
