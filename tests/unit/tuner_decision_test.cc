#include "plugin/tuner/decision.hpp"

#include <gtest/gtest.h>

#include <array>
#include <random>

#include "base/units.hpp"

namespace noria::plugin::tuner {
namespace {

constexpr Facts kTwoNodes{.ranks = 16, .nodes = 2};

struct AllCosts {
  AllCosts() { values.fill(100); }
  float& of(Algorithm algorithm, Protocol protocol) { return values[cell_of(algorithm, protocol)]; }
  Costs costs() { return {values.data(), kAlgorithms.size(), kProtocols.size()}; }

  std::array<float, kCells> values;
};

Row row(Range bytes, Algorithm algorithm, Protocol protocol) {
  Row made;
  made.bytes = bytes;
  made.algorithm = algorithm;
  made.protocol = protocol;
  return made;
}

// What the contract says, word by word.
const Row* first_that_fits(const Table& table, const Facts& facts, Collective collective,
                           uint64_t bytes, const Costs& costs) {
  for (const Row& each : table.rows)
    if (each.collective == collective && is_for(each, facts) && each.bytes.has(bytes) &&
        costs.of(each) >= 0)
      return &each;
  return nullptr;
}

TEST(Tuner_decision, Is_the_first_row_that_fits_whatever_the_table) {
  std::mt19937_64 random(7);
  const auto below = [&](uint64_t n) { return random() % n; };
  for (int round = 0; round < 60; ++round) {
    Table table;
    const size_t count = 1 + below(round < 50 ? 40 : 400);
    for (size_t i = 0; i < count; ++i) {
      const uint64_t first = below(4) == 0 ? 0 : random() >> below(64);
      const uint64_t last = below(4) == 0 ? UINT64_MAX : first + (random() >> below(64)) % 5000;
      Row made = row({first, std::max(first, last)}, static_cast<Algorithm>(below(7)),
                     static_cast<Protocol>(below(3)));
      made.collective = static_cast<Collective>(below(5));
      if (below(3) == 0) made.nodes = {1 + below(3), 2 + below(3)};
      table.rows.push_back(made);
    }
    const Index index = Index::make(table, kTwoNodes);
    AllCosts all;
    for (float& cost : all.values) cost = below(4) == 0 ? -1.0F : static_cast<float>(below(100));
    for (int i = 0; i < 300; ++i) {
      const Row& near = table.rows[below(count)];
      const uint64_t edges[]{near.bytes.first,    near.bytes.first - 1,  near.bytes.last,
                             near.bytes.last + 1, random() >> below(64), 0};
      const uint64_t bytes = edges[below(6)];
      const auto collective = static_cast<Collective>(below(5));
      ASSERT_EQ(decide(table, index, collective, bytes, all.costs()).row,
                first_that_fits(table, kTwoNodes, collective, bytes, all.costs()))
          << round << " " << bytes;
    }
  }
}

TEST(Tuner_decision, An_empty_table_decides_nothing) {
  const Table table;
  const Index index = Index::make(table, kTwoNodes);
  AllCosts all;
  EXPECT_EQ(decide(table, index, Collective::all_reduce, 1, all.costs()).reason, Reason::no_row);
}

TEST(Tuner_decision, Nodes_of_unlike_numbers_of_ranks_fit_only_rows_for_any_number) {
  Row any, eight;
  eight.ranks_per_node = {8, 8};
  EXPECT_TRUE(is_for(eight, kTwoNodes));
  EXPECT_FALSE(is_for(eight, {.ranks = 15, .nodes = 2}));
  EXPECT_TRUE(is_for(any, {.ranks = 15, .nodes = 2}));
  EXPECT_FALSE(is_for(eight, {.ranks = 8, .nodes = 0}));
}

TEST(Tuner_decision, Says_why) {
  Table table;
  table.rows = {row({}, Algorithm::ring, Protocol::simple), row({}, Algorithm::tree, Protocol::ll)};
  for (Row& each : table.rows) each.max_regret = 0.1;
  const Index index = Index::make(table, kTwoNodes);
  AllCosts all;
  const auto reason = [&] {
    return decide(table, index, Collective::all_reduce, 1_MiB, all.costs()).reason;
  };
  all.of(Algorithm::tree, Protocol::ll) = 50;
  EXPECT_EQ(reason(), Reason::override);
  // Both are predicted: 100 against 109, then against 111.
  table.rows[0].is_predicted = table.rows[1].is_predicted = true;
  table.rows[0].us_per_mib = 100;
  table.rows[1].us_per_mib = 109;
  EXPECT_EQ(reason(), Reason::too_small_gain);
  table.rows[1].us_per_mib = 111;
  EXPECT_EQ(reason(), Reason::override);
  // Ours is modelled, and better as far as the table knows.  Expect: it counts.
  table.rows[0].is_modelled = true;
  EXPECT_EQ(reason(), Reason::override);
  // Of NCCL's nothing is predicted.  Expect: what nobody measured does not count against it.
  table.rows[1].is_predicted = false;
  EXPECT_EQ(reason(), Reason::too_small_gain);
  table.rows[0].is_modelled = false;
  EXPECT_EQ(reason(), Reason::override);
  // NCCL's choice is one that no row speaks of, then ours, then none is left.
  all.of(Algorithm::pat, Protocol::simple) = 1;
  EXPECT_EQ(reason(), Reason::override);
  all.of(Algorithm::ring, Protocol::simple) = 0.5;
  EXPECT_EQ(reason(), Reason::same);
  all.values.fill(-1);
  EXPECT_EQ(reason(), Reason::no_row);
}

TEST(Tuner_decision, Algorithms_that_NCCL_does_not_know_yet_are_passed_over) {
  Table table;
  table.rows = {row({}, Algorithm::pat, Protocol::simple), row({}, Algorithm::ring, Protocol::ll)};
  AllCosts all;
  const Costs six{all.values.data(), 6, 3};
  const Index index = Index::make(table, kTwoNodes);
  EXPECT_EQ(decide(table, index, Collective::all_reduce, 1, six).row, &table.rows[1]);
}

TEST(Tuner_decision, LL128_is_ignored_unless_it_is_all_that_is_left) {
  AllCosts all;
  all.of(Algorithm::tree, Protocol::ll) = -1;
  EXPECT_FALSE(ignore_ll128(all.costs()));
  for (size_t i = 0; i < kCells; ++i)
    EXPECT_EQ(all.values[i], i % 3 == 1 || i == 0 ? -1 : 100) << i;
  // Nothing is left: nothing to ignore either.
  all.values.fill(-1);
  EXPECT_FALSE(ignore_ll128(all.costs()));
  all.of(Algorithm::ring, Protocol::ll128) = 3;
  EXPECT_TRUE(ignore_ll128(all.costs()));
  EXPECT_EQ(all.of(Algorithm::ring, Protocol::ll128), 3);
  // A table of another shape has none.
  EXPECT_FALSE(ignore_ll128({all.values.data(), 7, 1}));
}

}  // namespace
}  // namespace noria::plugin::tuner
