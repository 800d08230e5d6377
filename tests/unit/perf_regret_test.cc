#include "perf/regret.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "base/units.hpp"
#include "perf/model_choice.hpp"

namespace noria::perf {
namespace {

using plugin::tuner::Algorithm;
using plugin::tuner::Cluster;
using plugin::tuner::Protocol;
using plugin::tuner::Table;

constexpr Cluster kUsual{.nics = 8, .link_gbit = 400};

// On two nodes of eight, from 1 MiB to 64 MiB.
Curve curve(std::optional<Algorithm> algorithm, std::optional<Protocol> protocol, double fixed_us,
            double us_per_mib) {
  Curve made;
  made.key = {.nodes = 2, .ranks_per_node = 8, .algorithm = algorithm, .protocol = protocol};
  made.sources = {"a.log table 1"};
  for (uint64_t mib = 1; mib <= 64; mib *= 2)
    made.times.push_back({mib << 20, fixed_us + us_per_mib * static_cast<double>(mib)});
  return made;
}
const Curve kRing = curve(Algorithm::ring, Protocol::simple, 90, 5);
const Curve kTree = curve(Algorithm::tree, Protocol::ll, 10, 25);

std::vector<ChoiceComparison> compare(const std::vector<Curve>& curves, const Table& table) {
  return compare_choices(curves, kUsual, [&](const CurveKey&, uint64_t) { return table; });
}

TEST(Regret, Sizes_that_a_table_has_not_seen_are_decided_by_those_around_them) {
  const std::vector<Curve> curves{kRing, kTree};
  const auto all = compare_choices(curves, kUsual, [&](const CurveKey& key, uint64_t bytes) {
    return table_without(curves, key, bytes, 0.05);
  });
  ASSERT_EQ(all.size(), 7u);
  for (size_t i = 1; i + 1 < all.size(); ++i) {  // at the ends NCCL's choice stands
    EXPECT_LE(all[i].regret(), 0.05) << all[i].bytes;
    if (all[i].bytes == 4_MiB) continue;  // where both take as long
    EXPECT_EQ(all[i].ours.name, all[i].bytes < 4_MiB ? "Tree/LL" : "Ring/Simple") << all[i].bytes;
  }
}

TEST(Regret, Without_a_row_the_choice_is_NCCLs_and_so_is_the_regret) {
  for (const ChoiceComparison& one : compare({kRing, kTree}, {})) {
    EXPECT_EQ(one.ours.us, one.of_nccl.us);
    EXPECT_EQ(one.over_nccl(), 0);
    EXPECT_EQ(one.regret(), one.regret_of_nccl());
    EXPECT_GE(one.regret(), 0);
  }
}

TEST(Regret, NCCL_left_alone_is_what_it_was_measured_to_be) {
  // Twice the time of the ring, whatever it was.
  const Curve own = curve(std::nullopt, std::nullopt, 180, 10);
  for (const ChoiceComparison& one : compare({own, kRing}, {})) {
    EXPECT_EQ(one.of_nccl.name, "NCCL's own");
    EXPECT_NEAR(one.regret_of_nccl(), 1, 1e-9);
    EXPECT_EQ(one.best.name, "Ring/Simple");
  }
  // A table that knows what NCCL's own costs.  Expect: the ring, at every size within.
  std::vector<Curve> closed{own, kRing};
  close_choices(kUsual, Open::all, &closed);
  for (const ChoiceComparison& one : compare_choices(
           {own, kRing}, kUsual,
           [&](const CurveKey&key, uint64_t) { return table_without(closed, key, 0, 0.05); }))
    EXPECT_EQ(one.ours.name, "Ring/Simple") << one.bytes;
}

TEST(Regret, One_choice_alone_compares_with_nothing) {
  EXPECT_TRUE(compare({kRing}, {}).empty());
  EXPECT_TRUE(compare({curve(std::nullopt, std::nullopt, 1, 1)}, {}).empty());
}

TEST(Model_choice, Half_open_choices_are_closed_within_what_is_known_and_open_ones_on_demand) {
  std::vector<Curve> curves{curve(Algorithm::ring, std::nullopt, 90, 5),
                            curve(std::nullopt, std::nullopt, 50, 4)};
  close_choices(kUsual, Open::half, &curves);
  size_t open = 0;
  for (const Curve& one : curves) {
    if (!one.key.algorithm) {
      ++open;
      EXPECT_EQ(one.sources.front(), "a.log table 1");
      continue;
    }
    EXPECT_EQ(one.key.algorithm, Algorithm::ring);
    EXPECT_TRUE(one.key.protocol);
    EXPECT_EQ(one.sources.front(), "modelled choice of NCCL's in a.log table 1");
  }
  EXPECT_EQ(open, 1u);
  close_choices(kUsual, Open::all, &curves);
  size_t times = 0;
  for (const Curve& one : curves) {
    EXPECT_TRUE(one.key.algorithm && one.key.protocol);
    times += one.times.size();
  }
  EXPECT_GE(times, 7u);
}

TEST(Model_choice, What_was_measured_by_name_is_not_guessed) {
  Curve own = curve(std::nullopt, std::nullopt, 50, 4);
  std::vector<Curve> curves{own};
  close_choices(kUsual, Open::all, &curves);
  const CurveKey guessed = curves.front().key;
  Curve named = curve(guessed.algorithm, guessed.protocol, 70, 4);
  curves = {own, named};
  close_choices(kUsual, Open::all, &curves);
  const auto found = std::find_if(curves.begin(), curves.end(),
                                  [&](const Curve& one) { return one.key == guessed; });
  ASSERT_NE(found, curves.end());
  EXPECT_EQ(found->times.front().us, 74);
  EXPECT_EQ(found->sources.front(), "a.log table 1");
}

TEST(Model_choice, Where_NCCL_uses_none_of_what_is_known_the_choice_stays_open) {
  const auto model = model_of(kUsual, kRing.key);
  const ModelChoice none =
      choice_by_model(model, {.nodes = 2, .ranks_per_node = 8, .algorithm = Algorithm::pat}, 1_MiB);
  EXPECT_EQ(none.algorithm, Algorithm::pat);
  EXPECT_FALSE(none.protocol);
}

}  // namespace
}  // namespace noria::perf
