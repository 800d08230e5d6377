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

TEST(Tuner_rows, A_curve_holds_where_it_was_measured) {
  const std::vector<FittedCurve> curves{
      straight(Algorithm::ring, Protocol::simple, 90, 5, 64_KiB, 64_MiB),
      straight(Algorithm::tree, Protocol::ll, 10, 25)};
  const std::vector<Row> rows = rows_of(curves, {});
  EXPECT_EQ(lines_of(rows),
            (Lines{"2 nodes 0-64K Tree/LL 10+25", "2 nodes 64K-4M Tree/LL 10+25",
                   "2 nodes 64K-4M Ring/Simple 90+5", "2 nodes 4M-67108865 Ring/Simple 90+5",
                   "2 nodes 4M-67108865 Tree/LL 10+25", "2 nodes 67108865- Tree/LL 10+25"}));
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

TEST(Tuner_rows, Nodes_that_nobody_measured_are_modelled_by_steps_from_the_nearest) {
  const std::vector<FittedCurve> curves{
      straight(Algorithm::ring, Protocol::simple, 30, 16, 8, 1_GiB, 2),
      straight(Algorithm::ring, Protocol::simple, 400, 17, 8, 1_GiB, 10),
      straight(Algorithm::tree, Protocol::ll, 5, 2, 8, 1_GiB, 1)};
  const std::vector<Row> rows = rows_of(curves, {.most_nodes = 16});
  // 30 steps on 2 nodes, 62 on 4; 158 on 10, 126 on 8 and 254 on 16.
  EXPECT_EQ(lines_of(rows),
            (Lines{"1 nodes * Tree/LL 5+2", "2 nodes * Ring/Simple 30+16",
                   "10 nodes * Ring/Simple 400+17", "3-5 nodes * Ring/Simple 62+16.53",
                   "6-9 nodes * Ring/Simple 319+16.95", "11 nodes * Ring/Simple 319+16.95",
                   "12-22 nodes * Ring/Simple 643+17.08"}));
  EXPECT_EQ(rows[3].provenance, "modelled at 4 nodes from 2 of a.log table 1");
  expect_well(curves, rows);
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
