#include "perf/scaled_curves.hpp"

#include <gtest/gtest.h>

#include <array>

#include "base/units.hpp"
#include "perf/model_choice.hpp"
#include "perf/tuner_rows.hpp"

namespace noria::perf {
namespace {

using plugin::tuner::Algorithm;
using plugin::tuner::Cluster;
using plugin::tuner::Protocol;
using plugin::tuner::Range;

constexpr Cluster kUsual{.nics = 8, .link_gbit = 400};

Curve ring(uint64_t nodes, uint64_t first, uint64_t last, double factor = 1) {
  Curve made;
  made.key = {.nodes = nodes,
              .ranks_per_node = 8,
              .algorithm = Algorithm::ring,
              .protocol = Protocol::simple};
  made.sources = {"a.log table 1"};
  const auto model = model_of(kUsual, made.key);
  for (uint64_t bytes = first; bytes <= last; bytes *= 2)
    made.times.push_back(
        {bytes, factor * model.us(made.key.collective, Algorithm::ring, Protocol::simple, bytes)});
  return made;
}

double model_us(const CurveKey& key, uint64_t bytes) {
  return model_of(kUsual, key).us(key.collective, *key.algorithm, *key.protocol, bytes);
}

TEST(Scaled_curves, What_the_model_is_wrong_by_here_it_is_thought_to_be_wrong_by_there) {
  const std::vector<Curve> made = scaled_curves({ring(2, 1_MiB, 64_MiB, 1.5)}, {4}, kUsual);
  ASSERT_EQ(made.size(), 1u);  // around 2 there is 2 alone, which was measured
  EXPECT_EQ(text_of(made[0].key), "all_reduce Ring/Simple, 4 nodes of 8");
  ASSERT_EQ(made[0].times.size(), 7u);
  for (const TimedSize& time : made[0].times)
    EXPECT_NEAR(time.us, 1.5 * model_us(made[0].key, time.bytes), 1e-6) << time.bytes;
  ASSERT_TRUE(made[0].scaling);
  EXPECT_EQ(made[0].scaling->nodes, 2u);
  EXPECT_EQ(made[0].scaling->stands_for, (std::vector<Range>{{3, 5}}));
}

TEST(Scaled_curves, Nodes_with_other_NICs_are_others_however_many_there_are) {
  Cluster four = kUsual;
  four.nics = 4;
  const std::vector<Curve> made =
      scaled_curves({ring(2, 1_MiB, 64_MiB, 1.5)}, {.most_nodes = 4, .measured_nics = 8}, four);
  ASSERT_EQ(made.size(), 2u);
  EXPECT_EQ(made[0].scaling->stands_for, (std::vector<Range>{{2, 2}}));
  EXPECT_EQ(made[0].scaling->nics, 8u);
  EXPECT_EQ(made[0].scaling->nics_there, 4u);
  // On as many nodes: half as much again as the model says of 8 NICs, and what 4 take longer.
  const auto us_of = [&](const Cluster& usual, uint64_t bytes) {
    return model_of(usual, made[0].key)
        .us(made[0].key.collective, Algorithm::ring, Protocol::simple, bytes);
  };
  for (const TimedSize& time : made[0].times)
    EXPECT_NEAR(time.us, us_of(four, time.bytes) + 0.5 * us_of(kUsual, time.bytes), 1e-6)
        << time.bytes;
  // More NICs save their part.
  const std::vector<Curve> more =
      scaled_curves({ring(2, 1_MiB, 64_MiB, 1.5)}, {.most_nodes = 2, .measured_nics = 2}, four);
  Cluster two = kUsual;
  two.nics = 2;
  const TimedSize& last = more[0].times.back();
  EXPECT_NEAR(last.us,
              1.5 * us_of(kUsual, last.bytes) * us_of(four, last.bytes) / us_of(two, last.bytes),
              1e-6);
  Measured measured{.curves = {made[1]}};
  EXPECT_EQ(rows_of(fit_curves(&measured), {}).front().provenance,
            "modelled at 4 nodes with 4 NICs from 2 with 8 NICs in a.log table 1");
}

TEST(Scaled_curves, Numbers_of_nodes_that_were_measured_are_left_out_of_their_octave) {
  const std::vector<Curve> made =
      scaled_curves({ring(4, 1_MiB, 2_MiB), ring(10, 1_MiB, 2_MiB)}, {8}, kUsual);
  ASSERT_EQ(made.size(), 3u);
  EXPECT_EQ(made[0].scaling->stands_for, (std::vector<Range>{{2, 2}}));
  EXPECT_EQ(made[1].scaling->stands_for, (std::vector<Range>{{3, 3}, {5, 5}}));
  EXPECT_EQ(made[2].scaling->stands_for, (std::vector<Range>{{6, 9}, {11, 11}}));
  EXPECT_EQ(made[2].scaling->nodes, 10u);
}

TEST(Scaled_curves, A_size_is_from_the_nearest_number_of_nodes_that_has_it) {
  const std::vector<Curve> made = scaled_curves(
      {ring(1, 1_KiB, 1_GiB), ring(2, 1_KiB, 64_MiB), ring(10, 32_MiB, 1_GiB)}, {16}, kUsual);
  uint64_t from_10 = 0, from_2 = 0;
  for (const Curve& one : made) {
    if (one.key.nodes != 16) continue;
    EXPECT_NE(one.scaling->nodes, 1u);
    (one.scaling->nodes == 10 ? from_10 : from_2) += one.times.size();
    EXPECT_EQ(one.times.back().bytes, one.scaling->nodes == 2 ? 16_MiB : 1_GiB);
  }
  EXPECT_EQ(from_10, 6u);  // 32 MiB to 1 GiB
  EXPECT_EQ(from_2, 15u);  // 1 KiB to 16 MiB
}

TEST(Scaled_curves, Sizes_that_a_measured_number_of_nodes_lacks_are_from_the_nearest_too) {
  const std::vector<Curve> made =
      scaled_curves({ring(2, 1_MiB, 16_MiB), ring(4, 4_MiB, 4_MiB)}, {4}, kUsual);
  ASSERT_EQ(made.size(), 3u);  // at 4, and on 3 and 5 nodes from both
  EXPECT_EQ(made[0].scaling->stands_for, (std::vector<Range>{{4, 4}}));
  EXPECT_EQ(made[0].scaling->nodes, 2u);
  ASSERT_EQ(made[0].times.size(), 4u);
  for (const TimedSize& time : made[0].times) EXPECT_NE(time.bytes, 4_MiB);
}

TEST(Scaled_curves, What_stands_for_a_number_of_nodes_and_for_those_around_it_stays_apart) {
  Curve open = ring(2, 1_MiB, 16_MiB);
  open.key.algorithm.reset();
  open.key.protocol.reset();
  Curve there = open;
  there.key.nodes = 4;
  there.times.resize(1);
  Measured scaled;
  scaled.curves = scaled_curves({open, there}, {4}, kUsual);
  close_choices(kUsual, Open::all, &scaled.curves);
  std::array<bool, 6> has{};
  for (const plugin::tuner::Row& row : rows_of(fit_curves(&scaled), {}))
    if (row.bytes.has(8_MiB))
      for (uint64_t nodes = row.nodes.first; nodes <= row.nodes.last; ++nodes) has[nodes] = true;
  EXPECT_TRUE(has[3] && has[4] && has[5]);
}

TEST(Scaled_curves, Other_ranks_of_a_node_are_asked_for_and_then_nothing_of_it_was_measured) {
  const std::vector<Curve> made = scaled_curves({ring(4, 1_MiB, 2_MiB)}, {4, 4}, kUsual);
  ASSERT_EQ(made.size(), 2u);
  EXPECT_EQ(made[1].key.ranks_per_node, 4u);
  EXPECT_EQ(made[1].scaling->ranks_per_node, 8u);
  EXPECT_EQ(made[1].scaling->stands_for, (std::vector<Range>{{3, 5}}));
}

TEST(Scaled_curves, An_open_choice_is_asked_for_between_the_sizes_too) {
  Curve open = ring(2, 32_MiB, 64_MiB);
  open.key.algorithm.reset();
  open.key.protocol.reset();
  const std::vector<Curve> made = scaled_curves({open}, {4}, kUsual);
  ASSERT_EQ(made.size(), 1u);
  EXPECT_EQ(means_of(made[0].times).size(), 4u);
  EXPECT_EQ(means_of(made[0].times).front().bytes, 23_MiB);
  EXPECT_EQ(made[0].scaling->bytes, (Range{23_MiB, 92_MiB - 1}));
}

TEST(Scaled_curves, What_the_model_has_no_time_for_is_left_out) {
  Curve pat = ring(2, 1_MiB, 2_MiB);
  pat.key.algorithm = Algorithm::pat;
  EXPECT_TRUE(scaled_curves({pat}, {4}, kUsual).empty());
  EXPECT_TRUE(scaled_curves({ring(2, 1_MiB, 2_MiB)}, {}, kUsual).empty());
}

}  // namespace
}  // namespace noria::perf
