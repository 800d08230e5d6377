#include "bucketing/tensor_shape.hpp"

#include <gtest/gtest.h>

#include <limits>
#include <vector>

namespace noria::bucketing {
namespace {

constexpr int64_t kMost = std::numeric_limits<int64_t>::max();

Outcome<Ok> check(uint64_t numel, const std::vector<int64_t>& shape,
                  const std::vector<int64_t>& strides = {}) {
  return check_shape("fc.weight", numel, shape, strides);
}

void expect_refused(const Outcome<Ok>& outcome, const std::string& part) {
  ASSERT_FALSE(outcome.is_ok());
  EXPECT_EQ(outcome.failure().code, NORIA_E_ARG);
  EXPECT_NE(outcome.failure().text.find("'fc.weight'"), std::string::npos);
  EXPECT_NE(outcome.failure().text.find(part), std::string::npos) << outcome.failure().text;
}

TEST(TensorShape, What_lies_row_by_row_is_taken) {
  EXPECT_TRUE(check(24, {2, 3, 4}).is_ok());
  EXPECT_TRUE(check(24, {2, 3, 4}, {12, 4, 1}).is_ok());
  EXPECT_TRUE(check(1, {}).is_ok());
  // Expect: strides that no index uses do not count.
  EXPECT_TRUE(check(4, {1, 4, 1}, {77, 1, 5}).is_ok());
  EXPECT_TRUE(check(0, {2, 0}, {9, 9}).is_ok());
  EXPECT_TRUE(check(0, {kMost, kMost, 0}).is_ok());
}

TEST(TensorShape, A_shape_of_another_number_of_elements_is_refused) {
  expect_refused(check(25, {2, 3, 4}), "[2, 3, 4]: that is not the number of its elements, 25");
  expect_refused(check(6, {-2, -3}), "0 or more");
  // Expect: a product past 64 bits is not taken for a small one.
  expect_refused(check(0, {int64_t{1} << 32, int64_t{1} << 32}), "not the number");
}

TEST(TensorShape, Gaps_and_other_orders_are_refused) {
  expect_refused(check(24, {2, 3, 4}, {24, 8, 2}), "strides [24, 8, 2] it is not contiguous");
  expect_refused(check(6, {2, 3}, {1, 2}), "not contiguous");
  expect_refused(check(6, {2, 3}, {0, 1}), "not contiguous");
}

}  // namespace
}  // namespace noria::bucketing
