#include "base/link_curve.hpp"

#include <gtest/gtest.h>

namespace noria {
namespace {

TEST(LinkCurve, Goes_through_both_points_in_either_order) {
  const LinkPoint small{.bytes = 1000, .us = 12}, large{.bytes = 101'000, .us = 62};
  for (const LinkCurve curve : {fit_link_curve(small, large), fit_link_curve(large, small)}) {
    EXPECT_DOUBLE_EQ(curve.bytes_per_us, 2000);
    EXPECT_DOUBLE_EQ(curve.alpha_us, 11.5);
    EXPECT_DOUBLE_EQ(curve.us(small.bytes), small.us);
    EXPECT_DOUBLE_EQ(curve.us(large.bytes), large.us);
  }
}

TEST(LinkCurve, Is_never_negative_whatever_noise_does) {
  // The larger was faster.  Expect: a fixed cost and no rate.
  const LinkCurve flat = fit_link_curve({.bytes = 1000, .us = 30}, {.bytes = 9000, .us = 20});
  EXPECT_DOUBLE_EQ(flat.us(1'000'000), 20);

  // The small one was faster than its share.  Expect: no fixed cost, and the large one's rate.
  const LinkCurve steep = fit_link_curve({.bytes = 1000, .us = 1}, {.bytes = 2000, .us = 200});
  EXPECT_DOUBLE_EQ(steep.alpha_us, 0);
  EXPECT_DOUBLE_EQ(steep.us(2000), 200);

  // One size says nothing of the rate.
  EXPECT_DOUBLE_EQ(fit_link_curve({.bytes = 8, .us = 5}, {.bytes = 8, .us = 7}).us(1'000'000), 5);
}

}  // namespace
}  // namespace noria
