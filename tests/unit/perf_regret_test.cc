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
    return table_without(curves, key, bytes);
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
  for (const ChoiceComparison& one :
       compare_choices({own, kRing}, kUsual,
                       [&](const CurveKey&key, uint64_t) { return table_without(closed, key, 0); }))
    EXPECT_EQ(one.ours.name, "Ring/Simple") << one.bytes;
}

TEST(Regret, A_ring_that_NCCL_is_thought_to_take_and_does_not_is_found) {
  // The model's first choice is measured by name too, and takes half of NCCL's own time.
  std::vector<Curve> open{curve(std::nullopt, std::nullopt, 180, 10)};
  close_choices(kUsual, Open::all, &open);
  Curve named = curve(open.front().key.algorithm, open.front().key.protocol, 90, 5);
  const std::vector<Curve> curves{curve(std::nullopt, std::nullopt, 180, 10), named};
  std::vector<Curve> closed = curves;
  close_choices(kUsual, Open::all, &closed);
  for (const ChoiceComparison& one : compare_choices(
           curves, kUsual,
           [&](const CurveKey&key, uint64_t) { return table_without(closed, key, 0); })) {
    EXPECT_EQ(one.regret(), 0) << one.bytes;
    EXPECT_NEAR(one.over_nccl(), -0.5, 1e-9) << one.bytes;
  }
}

TEST(Regret, One_choice_alone_compares_with_nothing) {
  EXPECT_TRUE(compare({kRing}, {}).empty());
  EXPECT_TRUE(compare({curve(std::nullopt, std::nullopt, 1, 1)}, {}).empty());
}

TEST(Regret, What_the_user_left_to_NCCL_in_part_is_not_NCCLs_own) {
  Curve some = curve(std::nullopt, std::nullopt, 180, 10);
  some.key.cells = kAllCells & ~cells_of(Algorithm::nvls_tree, {});
  EXPECT_TRUE(compare({some, kRing}, {}).empty());
  // What is guessed of it is among what was left.
  std::vector<Curve> closed{some};
  close_choices(kUsual, Open::all, &closed);
  for (const Curve& one : closed) {
    EXPECT_NE(one.key.algorithm, Algorithm::nvls_tree);
    EXPECT_EQ(one.key.cells, kAllCells);
  }
}

TEST(Model_choice, Half_open_choices_are_closed_within_what_is_known_and_open_ones_on_demand) {
  std::vector<Curve> curves{curve(Algorithm::ring, std::nullopt, 90, 5),
                            curve(std::nullopt, std::nullopt, 50, 4)};
  close_choices(kUsual, Open::half, &curves);
  size_t open = 0;
  for (const Curve& one : curves) {
    if (!one.key.algorithm) {
      ++open;
      EXPECT_FALSE(one.is_guess);
      continue;
    }
    EXPECT_EQ(one.key.algorithm, Algorithm::ring);
    EXPECT_TRUE(one.key.protocol);
    EXPECT_TRUE(one.is_guess);
  }
  EXPECT_EQ(open, 1u);
  close_choices(kUsual, Open::all, &curves);
  size_t times = 0;
  for (const Curve& one : curves) {
    EXPECT_TRUE(one.key.algorithm && one.key.protocol);
    times += one.times.size();
    // Each change of the model's choice is at an edge: below it stands another.
    for (const uint64_t edge : one.edges) {
      CurveKey key = communicator_of(one.key);
      if (one.key.algorithm == Algorithm::ring) key.algorithm = Algorithm::ring;
      const auto model = model_of(kUsual, key);
      EXPECT_NE(choice_by_model(model, key, edge - 1), choice_by_model(model, key, edge));
    }
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
  EXPECT_FALSE(found->is_guess);
}

TEST(Model_choice, What_takes_another_time_by_name_is_not_what_NCCL_chose) {
  const Curve own = curve(std::nullopt, std::nullopt, 50, 4);
  std::vector<Curve> curves{own};
  close_choices(kUsual, Open::all, &curves);
  const CurveKey guessed = curves.front().key;
  // As long by name: the guess stands, and what was measured by name is the curve.
  Curve named = own;
  named.key = guessed;
  curves = {own, named};
  close_choices(kUsual, Open::all, &curves);
  const auto times_of = [&](const CurveKey& key) {
    const auto found = std::find_if(curves.begin(), curves.end(),
                                    [&](const Curve& one) { return one.key == key; });
    return found != curves.end() ? found->times.size() : 0;
  };
  size_t of_others = 0;
  for (const Curve& one : curves) of_others += one.key != guessed ? one.times.size() : 0;
  EXPECT_EQ(times_of(guessed), 7u);
  // Twice as fast.  Expect: all times of NCCL's own are of other choices.
  for (TimedSize& time : named.times) time.us /= 2;
  curves = {own, named};
  close_choices(kUsual, Open::all, &curves);
  size_t elsewhere = 0;
  for (const Curve& one : curves) elsewhere += one.key != guessed ? one.times.size() : 0;
  EXPECT_EQ(elsewhere, 7u);
  EXPECT_LT(of_others, elsewhere);
}

TEST(Model_choice, Times_that_differ_by_themselves_contradict_no_guess) {
  // Out of place and in place differ by four, and by name it takes twice as long.
  Curve own = curve(std::nullopt, std::nullopt, 50, 4);
  std::vector<Curve> curves{own};
  close_choices(kUsual, Open::all, &curves);
  Curve named = curve(curves.front().key.algorithm, curves.front().key.protocol, 100, 8);
  const auto guesses = [&] {
    curves = {own, named};
    close_choices(kUsual, Open::all, &curves);
    size_t elsewhere = 0;
    for (const Curve& one : curves)
      elsewhere += one.key != named.key && holds(held_by(one.times), 1_MiB) ? 1 : 0;
    return elsewhere;
  };
  EXPECT_EQ(guesses(), 1u);
  for (TimedSize& time : own.times) time.us /= 2;
  for (size_t i = 0; i < 7; ++i) own.times.push_back({own.times[i].bytes, own.times[i].us * 4});
  EXPECT_EQ(guesses(), 0u);
  // So by a table that has it, too: there may be nothing to lose.
  plugin::tuner::Row row{.nodes = {2, 2}, .ranks_per_node = {8, 8}};
  row.algorithm = *named.key.algorithm;
  row.protocol = *named.key.protocol;
  EXPECT_EQ(compare({own, named}, {.rows = {row}}).front().over_nccl(), 0);
}

TEST(Model_choice, A_guess_of_one_size_has_the_shape_of_the_models_line) {
  Curve own = curve(std::nullopt, std::nullopt, 50, 4);
  own.times.resize(1);
  Measured measured{.curves = {own}};
  close_choices(kUsual, Open::all, &measured.curves);
  const std::vector<FittedCurve> fitted = fit_curves(&measured);
  ASSERT_EQ(fitted.size(), 1u);
  ASSERT_EQ(fitted[0].pieces.size(), 1u);
  EXPECT_NEAR(fitted[0].pieces[0].line.us(1_MiB), 54, 1e-9);
  EXPECT_GT(fitted[0].pieces[0].line.fixed_us, 0);
  EXPECT_GT(fitted[0].pieces[0].line.us_per_byte, 0);
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
