#include "perf/piecewise_fit.hpp"

#include <gtest/gtest.h>

#include <algorithm>

#include "perf/stats.hpp"

namespace noria::perf {
namespace {

// Powers of two from 8 bytes on, timed by `us`.
template <class Time>
std::vector<TimedSize> timed(int sizes, const Time& us) {
  std::vector<TimedSize> times;
  for (int i = 0; i < sizes; ++i) {
    const uint64_t bytes = uint64_t{8} << i;
    times.push_back({bytes, us(bytes)});
  }
  return times;
}

double straight(uint64_t bytes) { return 20 + 1e-4 * static_cast<double>(bytes); }
// Another protocol from 64 KiB on.
double bent(uint64_t bytes) {
  return bytes < 65536 ? 10 + 4e-4 * static_cast<double>(bytes)
                       : 34 + 4e-5 * static_cast<double>(bytes);
}

TEST(Piecewise_fit, A_straight_line_is_one_piece_with_its_two_numbers) {
  const auto pieces = fit_pieces(timed(28, straight));
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_EQ(pieces[0].first_byte, 0u);
  EXPECT_NEAR(pieces[0].line.fixed_us, 20, 1e-6);
  EXPECT_NEAR(pieces[0].line.us_per_byte, 1e-4, 1e-10);
}

TEST(Piecewise_fit, A_bend_is_found_between_the_sizes_that_it_lies_between) {
  const auto pieces = fit_pieces(timed(24, bent));
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_GT(pieces[1].first_byte, 32768u);
  EXPECT_LE(pieces[1].first_byte, 65536u);
  EXPECT_NEAR(pieces[0].line.fixed_us, 10, 1e-6);
  EXPECT_NEAR(pieces[1].line.us_per_byte, 4e-5, 1e-10);
  EXPECT_NEAR(line_at(pieces, 1 << 20).us(1 << 20), bent(1 << 20), 1e-6);
  EXPECT_NEAR(line_at(pieces, 8).us(8), bent(8), 1e-6);
}

TEST(Piecewise_fit, An_outlier_does_not_move_the_line) {
  auto times = timed(28, straight);
  times[11].us *= 4;
  const auto pieces = fit_pieces(times);
  ASSERT_EQ(pieces.size(), 1u);
  EXPECT_NEAR(pieces[0].line.fixed_us, 20, 0.5);
  EXPECT_NEAR(errors_of(pieces, times)[11], 0.75, 0.01);
}

TEST(Piecewise_fit, What_two_sizes_show_twice_is_no_outlier) {
  auto times = timed(28, straight);
  times[26].us *= 3;
  times[27].us *= 3;
  const auto once = times;
  times.insert(times.end(), once.begin(), once.end());
  const auto pieces = fit_pieces(times);
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_NEAR(pieces[1].line.us(once[27].bytes), once[27].us, 1e-3 * once[27].us);
}

TEST(Piecewise_fit, No_part_is_ever_negative) {
  // Faster with size, as a first call that loads code: all of it is fixed cost.
  const auto falling = fit_pieces({{8, 40}, {16, 30}, {32, 20}});
  ASSERT_EQ(falling.size(), 1u);
  EXPECT_EQ(falling[0].line.us_per_byte, 0);
  EXPECT_GT(falling[0].line.fixed_us, 20);
  // A line that meets no time above no bytes.
  const auto steep = fit_pieces({{100, 1}, {200, 10}, {400, 40}});
  EXPECT_EQ(steep[0].line.fixed_us, 0);
  EXPECT_GT(steep[0].line.us_per_byte, 0);
}

TEST(Piecewise_fit, Order_and_repetition_of_sizes_do_not_matter) {
  auto times = timed(24, bent);
  auto twice = times;
  std::reverse(times.begin(), times.end());
  twice.insert(twice.end(), times.begin(), times.end());
  const auto pieces = fit_pieces(twice);
  ASSERT_EQ(pieces.size(), 2u);
  EXPECT_NEAR(pieces[1].line.fixed_us, 34, 1e-6);
  ASSERT_EQ(means_of(twice).size(), 24u);
  EXPECT_NEAR(means_of({{8, 4}, {8, 9}})[0].us, 6, 1e-12);
}

TEST(Piecewise_fit, Fewer_than_two_sizes_have_no_line_and_fewer_than_three_leave_none_out) {
  EXPECT_TRUE(fit_pieces({}).empty());
  EXPECT_TRUE(fit_pieces({{8, 1}, {8, 2}}).empty());
  EXPECT_EQ(fit_pieces({{8, 1}, {16, 2}}).size(), 1u);
  EXPECT_TRUE(left_out_errors({{8, 1}, {16, 2}}).empty());
  EXPECT_TRUE(errors_of({}, {{8, 1}}).empty());
}

TEST(Piecewise_fit, Sizes_that_were_left_out_are_predicted) {
  const auto errors = left_out_errors(timed(24, bent));
  ASSERT_EQ(errors.size(), 24u);
  EXPECT_LT(median(errors), 0.001);
}

}  // namespace
}  // namespace noria::perf
