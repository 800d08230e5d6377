#include "perf/verify.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "perf/elements.hpp"
#include "perf/small_floats.hpp"

namespace noria::perf {
namespace {

// How elements of T are computed with here: Real holds them, and their sums and products.
template <class T>
struct Arithmetic {
  using Real = T;
  static Real real(T v) { return v; }
  static T element(Real v) { return v; }
};
template <>
struct Arithmetic<int32_t> {
  using Real = int64_t;
  static Real real(int32_t v) { return v; }
  static int32_t element(Real v) { return static_cast<int32_t>(v); }  // wraps
};
template <>
struct Arithmetic<Float16> {
  using Real = float;
  static Real real(Float16 v) { return to_float(v); }
  static Float16 element(Real v) { return to_float16(v); }
};
template <>
struct Arithmetic<Bfloat16> {
  using Real = float;
  static Real real(Bfloat16 v) { return to_float(v); }
  static Bfloat16 element(Real v) { return to_bfloat16(v); }
};

// What a right all-reduce gives, rounded after each rank as a ring does.
template <class T>
std::vector<T> reduce(const DataSpec& spec, uint64_t count) {
  using A = Arithmetic<T>;
  std::vector<T> result(count), element(count);
  fill(result.data(), 0, count, 0, spec);
  for (int rank = 1; rank < spec.ranks; ++rank) {
    fill(element.data(), 0, count, rank, spec);
    for (uint64_t i = 0; i < count; ++i) {
      const auto a = A::real(result[i]), b = A::real(element[i]);
      switch (spec.op) {
        case NORIA_PROD: result[i] = A::element(a * b); break;
        case NORIA_MAX: result[i] = A::element(std::max(a, b)); break;
        case NORIA_MIN: result[i] = A::element(std::min(a, b)); break;
        default: result[i] = A::element(a + b); break;
      }
    }
  }
  if (spec.op == NORIA_AVG)
    for (T& value : result)
      value = A::element(A::real(value) / static_cast<typename A::Real>(spec.ranks));
  return result;
}

constexpr uint64_t kCount = 1500;  // not a multiple of the checker's block

template <class T>
void expect_right_results_pass(noria_dtype dtype) {
  for (const OpRow& op : kOps)
    for (const int ranks : {1, 2, 3, 4, 6, 8})
      for (const bool exact : {true, false}) {
        if (op.op == NORIA_AVG && is_integer(dtype)) continue;
        if (op.op == NORIA_PROD && ranks > 6 && is_integer(dtype)) continue;  // more than 64 bits
        const DataSpec spec{
            .dtype = dtype, .op = op.op, .ranks = ranks, .round = 3, .exact = exact};
        EXPECT_EQ(count_wrong(reduce<T>(spec, kCount).data(), 0, kCount, spec), 0U)
            << dtype_row(dtype).name << ' ' << op.name << ' ' << ranks << " ranks, exact " << exact;
      }
}

TEST(Verify, Right_results_of_every_dtype_and_op_pass) {
  expect_right_results_pass<int32_t>(NORIA_INT32);
  expect_right_results_pass<int64_t>(NORIA_INT64);
  expect_right_results_pass<Float16>(NORIA_FLOAT16);
  expect_right_results_pass<Bfloat16>(NORIA_BFLOAT16);
  expect_right_results_pass<float>(NORIA_FLOAT32);
  expect_right_results_pass<double>(NORIA_FLOAT64);
}

TEST(Verify, One_flipped_bit_anywhere_is_one_wrong_element) {
  const DataSpec spec{.dtype = NORIA_FLOAT32, .op = NORIA_SUM, .ranks = 2};
  const std::vector<float> right = reduce<float>(spec, kCount);
  for (const uint64_t index : {uint64_t{0}, uint64_t{511}, uint64_t{512}, kCount - 1})
    for (int bit = 0; bit < 32; ++bit) {
      std::vector<float> flipped = right;
      uint32_t bits = 0;
      std::memcpy(&bits, &flipped[index], sizeof bits);
      bits ^= 1U << bit;
      std::memcpy(&flipped[index], &bits, sizeof bits);
      // Expect: that element, whichever bit it was.
      EXPECT_EQ(count_wrong(flipped.data(), 0, kCount, spec), 1U) << index << " bit " << bit;
    }
}

TEST(Verify, With_full_significands_an_error_beyond_the_bound_is_wrong_and_within_it_right) {
  const DataSpec spec{.dtype = NORIA_FLOAT32, .op = NORIA_SUM, .ranks = 2, .exact = false};
  std::vector<float> a(1), b(1);
  fill(a.data(), 0, 1, 0, spec);
  fill(b.data(), 0, 1, 1, spec);
  const double weight = std::fabs(static_cast<double>(a[0])) + std::fabs(static_cast<double>(b[0]));
  const double sum = static_cast<double>(a[0]) + static_cast<double>(b[0]);
  const double bound = 2 * 0x1p-23 * weight;
  const auto near = static_cast<float>(sum + bound / 2);
  const auto far = static_cast<float>(sum + bound * 4);
  EXPECT_EQ(count_wrong(&near, 0, 1, spec), 0U);
  EXPECT_EQ(count_wrong(&far, 0, 1, spec), 1U);
}

TEST(Verify, A_result_that_is_no_number_is_wrong) {
  const float not_a_number = std::nanf("");
  for (const bool exact : {true, false})
    EXPECT_EQ(count_wrong(&not_a_number, 0, 1, {.ranks = 3, .exact = exact}), 1U);
}

TEST(Verify, Data_of_another_rank_round_or_place_is_wrong) {
  const DataSpec spec{.dtype = NORIA_FLOAT32, .op = NORIA_SUM, .ranks = 2, .round = 7};
  // One rank's data instead of the sum.  Expect: nearly all wrong.
  std::vector<float> data(kCount);
  fill(data.data(), 0, kCount, 0, spec);
  EXPECT_EQ(count_wrong(data.data(), 0, kCount, spec), kCount);

  // The sum of the round before.
  const DataSpec before{.dtype = NORIA_FLOAT32, .op = NORIA_SUM, .ranks = 2, .round = 6};
  EXPECT_GT(count_wrong(reduce<float>(before, kCount).data(), 0, kCount, spec), kCount - 10);

  // The right sums, one element further on.
  EXPECT_GT(count_wrong(reduce<float>(spec, kCount).data(), 1, kCount, spec), kCount - 10);
}

TEST(Verify, A_part_is_checked_as_the_whole_is) {
  const DataSpec spec{.dtype = NORIA_BFLOAT16, .op = NORIA_MAX, .ranks = 2};
  std::vector<Bfloat16> whole(kCount), part(100);
  fill(whole.data(), 0, kCount, 1, spec);
  fill(part.data(), 1000, 100, 1, spec);
  EXPECT_EQ(std::memcmp(part.data(), &whole[1000], 200), 0);
}

TEST(Small_floats, Every_half_and_bfloat16_survives_the_way_to_float_and_back) {
  for (uint32_t bits = 0; bits <= 0xffffU; ++bits) {
    const Float16 half{static_cast<uint16_t>(bits)};
    const Bfloat16 brain{static_cast<uint16_t>(bits)};
    if (!std::isnan(to_float(half))) {
      ASSERT_EQ(to_float16(to_float(half)).bits, bits);
    }
    if (!std::isnan(to_float(brain))) {
      ASSERT_EQ(to_bfloat16(to_float(brain)).bits, bits);
    }
  }
}

TEST(Small_floats, Values_between_two_go_to_the_nearest_and_ties_to_even) {
  EXPECT_EQ(to_float16(1.0F + 0x1p-11F).bits, to_float16(1.0F).bits);          // tie: even below
  EXPECT_EQ(to_float16(1.0F + 3 * 0x1p-11F).bits, to_float16(1.0F).bits + 2);  // tie: even above
  EXPECT_EQ(to_float16(1.0F + 0x1.1p-11F).bits, to_float16(1.0F).bits + 1);    // past the tie
  EXPECT_EQ(to_float16(65519.0F).bits, 0x7bff);                                // largest
  EXPECT_EQ(to_float16(65520.0F).bits, 0x7c00);                                // infinite
  EXPECT_EQ(to_float16(0x1p-25F).bits, 0);                                     // tie: even is zero
  EXPECT_EQ(to_float16(0x1.8p-25F).bits, 1);
  EXPECT_EQ(to_bfloat16(1.0F + 0x1p-8F).bits, to_bfloat16(1.0F).bits);
  EXPECT_EQ(to_bfloat16(1.0F + 3 * 0x1p-8F).bits, to_bfloat16(1.0F).bits + 2);
}

}  // namespace
}  // namespace noria::perf
