#include "perf/tuner_rows.hpp"

#include <gtest/gtest.h>

#include "base/units.hpp"
#include "plugin/tuner/review.hpp"

namespace noria::perf {
namespace {

using plugin::tuner::Algorithm;
using plugin::tuner::parse_table;
using plugin::tuner::Protocol;
using plugin::tuner::Row;

// Measured from `first` to `last` by the factor 2, on lines given.
FittedCurve curve(Algorithm algorithm, Protocol protocol, std::vector<LinePiece> pieces,
                  uint64_t first = 8, uint64_t last = 1_GiB, uint64_t nodes = 2) {
  FittedCurve fitted;
  fitted.curve.key = {
      .nodes = nodes, .ranks_per_node = 8, .algorithm = algorithm, .protocol = protocol};
  fitted.curve.sources = {"a.log table 1"};
  for (uint64_t bytes = first; bytes <= last; bytes *= 2)
    fitted.curve.times.push_back({bytes, line_at(pieces, bytes).us(bytes)});
  fitted.pieces = std::move(pieces);
  return fitted;
}
FittedCurve straight(Algorithm algorithm, Protocol protocol, double fixed_us, double us_per_mib,
                     uint64_t first = 8, uint64_t last = 1_GiB, uint64_t nodes = 2) {
  return curve(algorithm, protocol, {{0, {fixed_us, us_per_mib / (1 << 20)}}}, first, last, nodes);
}

// As "0-4M Ring/LL 10+2".
std::vector<std::string> lines_of(const std::vector<Row>& rows) {
  std::vector<std::string> lines;
  for (const Row& row : rows) {
    std::vector<std::string> columns(1);
    for (const char c : text_of(row)) {
      if (c == ',')
        columns.emplace_back();
      else
        columns.back() += c;
    }
    lines.push_back(columns[2] + " nodes " + columns[1] + " " + columns[8] + "/" + columns[9] +
                    " " + columns[12] + "+" + columns[13]);
  }
  return lines;
}
using Lines = std::vector<std::string>;

void expect_well(const std::vector<FittedCurve>& curves, const std::vector<Row>& rows) {
  const auto table = parse_table(table_text(curves, rows, 0.05), "a.csv");
  ASSERT_TRUE(table) << table.failure();
  EXPECT_EQ(table->rows.size(), rows.size());
  EXPECT_EQ(review(*table), Lines());
}

TEST(Tuner_rows, Where_two_lines_cross_the_order_turns) {
  const std::vector<FittedCurve> curves{straight(Algorithm::ring, Protocol::simple, 90, 5),
                                        straight(Algorithm::tree, Protocol::ll, 10, 25)};
  const std::vector<Row> rows = rows_of(curves, {});
  EXPECT_EQ(lines_of(rows), (Lines{"2 nodes 0-4M Tree/LL 10+25", "2 nodes 0-4M Ring/Simple 90+5",
                                   "2 nodes 4M- Ring/Simple 90+5", "2 nodes 4M- Tree/LL 10+25"}));
  expect_well(curves, rows);
}

TEST(Tuner_rows, A_curve_holds_where_it_was_measured_and_half_an_octave_beyond) {
  const std::vector<FittedCurve> curves{
      straight(Algorithm::ring, Protocol::simple, 90, 5, 64_KiB, 64_MiB),
      straight(Algorithm::tree, Protocol::ll, 10, 25)};
  const std::vector<Row> rows = rows_of(curves, {});
  EXPECT_EQ(lines_of(rows),
            (Lines{"2 nodes 0-46K Tree/LL 10+25", "2 nodes 46K-4M Tree/LL 10+25",
                   "2 nodes 46K-4M Ring/Simple 90+5", "2 nodes 4M-92M Ring/Simple 90+5",
                   "2 nodes 4M-92M Tree/LL 10+25", "2 nodes 92M- Tree/LL 10+25"}));
  expect_well(curves, rows);
}

TEST(Tuner_rows, Each_piece_is_rows_of_its_own_and_an_open_choice_is_none) {
  FittedCurve open = straight(Algorithm::ring, Protocol::simple, 1, 1);
  open.curve.key.protocol.reset();
  const std::vector<FittedCurve> curves{
      curve(Algorithm::ring, Protocol::simple, {{0, {20, 1e-3}}, {1'000'000, {900, 1e-4}}}), open};
  const std::vector<Row> rows = rows_of(curves, {.provenance = "of a test"});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[1].bytes.first, 1015808u);  // a million, within 3 %
  EXPECT_EQ(rows[0].provenance, "a.log table 1; of a test");
  expect_well(curves, rows);
}

TEST(Tuner_rows, Guesses_of_one_sweep_end_where_the_next_begins_whatever_another_sweep_has) {
  FittedCurve small = straight(Algorithm::ring, Protocol::ll, 10, 25, 8, 1_MiB);
  FittedCurve large = straight(Algorithm::ring, Protocol::simple, 90, 5, 4_MiB, 1_GiB);
  FittedCurve other = straight(Algorithm::tree, Protocol::ll, 500, 90, 2_MiB, 64_MiB);
  small.curve.is_guess = large.curve.is_guess = other.curve.is_guess = true;
  other.curve.sources = {"b.log table 1"};
  const std::vector<FittedCurve> curves{small, large, other};
  const Lines lines = lines_of(rows_of(curves, {}));
  EXPECT_EQ(lines, (Lines{"2 nodes 0-1472K Ring/LL 10+25", "2 nodes 1472K-2M Ring/LL 10+25",
                          "2 nodes 1472K-2M Tree/LL 500+90", "2 nodes 2M-92M Ring/Simple 90+5",
                          "2 nodes 2M-92M Tree/LL 500+90", "2 nodes 92M- Ring/Simple 90+5"}));
  // Where the model changes its choice is known.
  small.curve.edges = {3_KiB, 3_MiB};
  EXPECT_EQ(lines_of(rows_of({small, large}, {})),
            (Lines{"2 nodes 0-3M Ring/LL 10+25", "2 nodes 3M- Ring/Simple 90+5"}));
}

TEST(Tuner_rows, What_is_scaled_or_guessed_is_modelled_and_says_from_what) {
  FittedCurve guess = straight(Algorithm::ring, Protocol::simple, 30, 16);
  guess.curve.is_guess = true;
  FittedCurve scaled = straight(Algorithm::ring, Protocol::simple, 60, 17, 8, 1_GiB, 8);
  scaled.curve.scaling = Scaling{2, 8, {{6, 9}, {11, 11}}};
  FittedCurve both = scaled;
  both.curve.key.nodes = 16;
  both.curve.is_guess = true;
  both.curve.scaling = Scaling{2, 4, {{12, 22}}};
  const std::vector<FittedCurve> curves{guess, scaled, both};
  const std::vector<Row> rows = rows_of(curves, {});
  EXPECT_EQ(lines_of(rows),
            (Lines{"2 nodes * Ring/Simple 30+16", "6-9 nodes * Ring/Simple 60+17",
                   "11 nodes * Ring/Simple 60+17", "12-22 nodes * Ring/Simple 60+17"}));
  ASSERT_EQ(rows.size(), 4u);
  for (const Row& row : rows) EXPECT_TRUE(row.is_modelled);
  EXPECT_EQ(rows[0].provenance, "modelled choice of NCCL's in a.log table 1");
  EXPECT_EQ(rows[1].provenance, "modelled at 8 nodes from 2 of a.log table 1");
  EXPECT_EQ(rows[3].provenance,
            "modelled choice of NCCL's at 16 nodes of 8 from 2 of 4 in a.log table 1");
  expect_well(curves, rows);
}

TEST(Tuner_rows, What_sizes_left_out_are_off_by_is_the_least_gain_that_counts) {
  FittedCurve exact = straight(Algorithm::ring, Protocol::simple, 30, 5);
  EXPECT_EQ(max_regret_of({exact}), 0.05);
  exact.left_out = 0.01;
  FittedCurve noisy = exact;
  noisy.left_out = 0.31234;
  EXPECT_EQ(max_regret_of({exact, exact, noisy}), 0.05);
  EXPECT_EQ(max_regret_of({exact, noisy, noisy}), 0.3123);
  noisy.left_out = 7;
  EXPECT_EQ(max_regret_of({noisy}), 1);
}

TEST(Tuner_rows, A_summary_tells_steps_bandwidth_and_errors) {
  FittedCurve fitted = straight(Algorithm::ring, Protocol::simple, 30, 5);
  fitted.residual = 0.011;
  fitted.worst = 0.2;
  fitted.worst_bytes = 1_MiB;
  EXPECT_EQ(
      summary_of(fitted),
      "all_reduce Ring/Simple, 2 nodes of 8: 28 sizes from 8 to 1G, 1 line; 30 steps of 1 us, "
      "393.2 GB/s bus at best, median error 1.1 %, largest 20 % at 1M");
  fitted.left_out = 0.03;
  fitted.curve.sources.push_back("b.log table 1");
  EXPECT_TRUE(summary_of(fitted).ends_with(", of sizes left out 3.0 %"));
  EXPECT_EQ(rows_of({fitted}, {})[0].provenance, "a.log table 1 and 1 more");
}

}  // namespace
}  // namespace noria::perf
