// The kernels against a reference that shares nothing with them: f16 and bf16 are decoded by
// arithmetic on their fields and encoded by searching the sorted list of all their values.

#include "bucketing/kernels.hpp"

#include <gtest/gtest.h>
#include <hwy/highway.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "bucketing/collective.hpp"

namespace noria::bucketing {
namespace {

// A 16-bit float by its number of mantissa bits: 10 is f16, 7 is bf16.
class Format {
 public:
  explicit Format(int mantissa_bits) : mantissa_bits_(mantissa_bits) {
    for (uint32_t bits = 0; bits < infinity(); ++bits)
      finite_.push_back(decode(static_cast<uint16_t>(bits)));
  }

  uint32_t infinity() const { return 0x7FFFU >> mantissa_bits_ << mantissa_bits_; }
  bool is_nan(uint16_t bits) const { return (bits & 0x7FFFU) > infinity(); }

  double decode(uint16_t bits) const {
    const double sign = (bits & 0x8000U) != 0 ? -1 : 1;
    const int exponent = (bits & 0x7FFF) >> mantissa_bits_;
    const int fraction = bits & ((1 << mantissa_bits_) - 1);
    const int bias = (1 << (14 - mantissa_bits_)) - 1;
    if (is_nan(bits)) return std::numeric_limits<double>::quiet_NaN();
    if ((bits & 0x7FFFU) == infinity()) return sign * std::numeric_limits<double>::infinity();
    if (exponent == 0) return sign * std::ldexp(fraction, 1 - bias - mantissa_bits_);
    return sign * std::ldexp(fraction + (1 << mantissa_bits_), exponent - bias - mantissa_bits_);
  }

  uint16_t encode(double value) const {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    if (std::isnan(value)) return static_cast<uint16_t>(infinity() + 1);
    const double magnitude = std::fabs(value);
    // Halfway between the largest value and the one that would follow it goes to infinity.
    const double largest = finite_.back();
    const double step = largest - finite_[finite_.size() - 2];
    if (magnitude >= largest + step / 2) return static_cast<uint16_t>(sign | infinity());
    auto above = static_cast<size_t>(std::lower_bound(finite_.begin(), finite_.end(), magnitude) -
                                     finite_.begin());
    if (above == finite_.size()) return static_cast<uint16_t>(sign | (above - 1));
    if (finite_[above] == magnitude || above == 0) return static_cast<uint16_t>(sign | above);
    const double up = finite_[above] - magnitude, down = magnitude - finite_[above - 1];
    if (down < up || (down == up && above % 2 == 1)) --above;
    return static_cast<uint16_t>(sign | above);
  }

 private:
  int mantissa_bits_;
  std::vector<double> finite_;  // non-negative values by their bits
};

const Format& format_of(noria_dtype dtype) {
  static const Format f16(10), bf16(7);
  return dtype == NORIA_FLOAT16 ? f16 : bf16;
}

template <class T>
T apply(noria_op op, T a, T b) {
  switch (op) {
    case NORIA_PROD: return static_cast<T>(a * b);
    case NORIA_MAX: return a > b || a != a ? a : b;
    case NORIA_MIN: return a < b || a != a ? a : b;
    default: return static_cast<T>(a + b);
  }
}

constexpr noria_op kOps[] = {NORIA_SUM, NORIA_PROD, NORIA_MAX, NORIA_MIN, NORIA_AVG};
constexpr noria_dtype kDtypes[] = {NORIA_FLOAT32,  NORIA_FLOAT64, NORIA_FLOAT16,
                                   NORIA_BFLOAT16, NORIA_INT32,   NORIA_INT64};

// Every instruction set that this machine has and the kernels were built for.
class KernelsTest : public testing::TestWithParam<int64_t> {
 protected:
  KernelsTest() {
    hwy::SetSupportedTargetsForTest(GetParam());
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  ~KernelsTest() override {
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
};

std::vector<int64_t> targets() {
  std::vector<int64_t> all;
  for (int64_t left = hwy::SupportedTargets() & HWY_TARGETS; left != 0; left &= left - 1)
    all.push_back(left & -left);
  return all;
}

std::string name_of(const testing::TestParamInfo<int64_t>& target) {
  return hwy::TargetName(target.param);
}
INSTANTIATE_TEST_SUITE_P(Every, KernelsTest, testing::ValuesIn(targets()), name_of);

// Bytes that mean small numbers of either sign, different by index and by `seed`.
std::vector<std::byte> fill(noria_dtype dtype, size_t count, uint64_t seed) {
  std::vector<std::byte> bytes(count * dtype_bytes(dtype));
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < count; ++i) {
    const auto integer = static_cast<int64_t>(random() % 2001) - 1000;
    const double real = static_cast<double>(integer) / 64;
    std::byte* to = bytes.data() + i * dtype_bytes(dtype);
    const auto put = [to](auto value) { std::memcpy(to, &value, sizeof value); };
    switch (dtype) {
      case NORIA_FLOAT32: put(static_cast<float>(real)); break;
      case NORIA_FLOAT64: put(real); break;
      case NORIA_INT32: put(static_cast<int32_t>(integer)); break;
      case NORIA_INT64: put(integer << 20); break;
      default: put(format_of(dtype).encode(real)); break;
    }
  }
  return bytes;
}

template <class T>
T at(const std::byte* bytes, size_t i) {
  T value;
  std::memcpy(&value, bytes + i * sizeof(T), sizeof value);
  return value;
}

// Empty when out = a op b, element for element.
std::string first_difference(noria_dtype dtype, noria_op op, const std::byte* out,
                             const std::byte* a, const std::byte* b, size_t count) {
  const auto compare = [&](auto zero) -> std::string {
    using T = decltype(zero);
    for (size_t i = 0; i < count; ++i)
      if (at<T>(out, i) != apply<T>(op, at<T>(a, i), at<T>(b, i)))
        return "element " + std::to_string(i) + ": " + std::to_string(at<T>(out, i));
    return {};
  };
  switch (dtype) {
    case NORIA_FLOAT32: return compare(float{});
    case NORIA_FLOAT64: return compare(double{});
    case NORIA_INT32: return compare(int32_t{});
    case NORIA_INT64: return compare(int64_t{});
    default: break;
  }
  const Format& format = format_of(dtype);
  for (size_t i = 0; i < count; ++i) {
    const auto x = static_cast<float>(format.decode(at<uint16_t>(a, i)));
    const auto y = static_cast<float>(format.decode(at<uint16_t>(b, i)));
    const uint16_t want = format.encode(static_cast<double>(apply(op, x, y)));
    const uint16_t got = at<uint16_t>(out, i);
    if (got != want && !(format.is_nan(got) && format.is_nan(want)))
      return "element " + std::to_string(i) + ": " + std::to_string(got) + " for " +
             std::to_string(want);
  }
  return {};
}

TEST_P(KernelsTest, Every_operation_matches_the_reference_at_every_tail) {
  for (const noria_dtype dtype : kDtypes)
    for (const noria_op op : kOps)
      for (size_t count = 0; count <= 150; count += count < 70 ? 1 : 13) {
        const auto a = fill(dtype, count, 1), b = fill(dtype, count, 2);
        std::vector<std::byte> out(a.size() + 1, std::byte{0x5A});
        reduce(dtype, op, out.data(), a.data(), b.data(), count);

        // Expect: every element right, the byte behind the last untouched.
        ASSERT_EQ(first_difference(dtype, op, out.data(), a.data(), b.data(), count), "")
            << dtype_name(dtype) << ' ' << op_name(op) << " of " << count;
        ASSERT_EQ(out.back(), std::byte{0x5A});
      }
}

TEST_P(KernelsTest, Operands_and_result_may_lie_at_any_byte) {
  constexpr size_t kCount = 131;
  for (const noria_dtype dtype : kDtypes)
    for (size_t shift = 1; shift < 8; ++shift) {
      const auto a = fill(dtype, kCount, 3), b = fill(dtype, kCount, 4);
      std::vector<std::byte> x(a.size() + 16), y(a.size() + 16), out(a.size() + 16);
      std::copy(a.begin(), a.end(), x.begin() + static_cast<ptrdiff_t>(shift));
      std::copy(b.begin(), b.end(), y.begin() + static_cast<ptrdiff_t>(8 - shift));
      reduce(dtype, NORIA_SUM, out.data() + shift + 1, x.data() + shift, y.data() + 8 - shift,
             kCount);

      // Expect: as for aligned ones.
      EXPECT_EQ(
          first_difference(dtype, NORIA_SUM, out.data() + shift + 1, a.data(), b.data(), kCount),
          "")
          << dtype_name(dtype) << " shifted by " << shift;
    }
}

TEST_P(KernelsTest, The_result_may_replace_either_operand) {
  constexpr size_t kCount = 1003;
  for (const noria_dtype dtype : kDtypes) {
    const auto a = fill(dtype, kCount, 5), b = fill(dtype, kCount, 6);
    auto first = a, second = b;
    reduce(dtype, NORIA_PROD, first.data(), first.data(), b.data(), kCount);
    reduce(dtype, NORIA_PROD, second.data(), a.data(), second.data(), kCount);

    // Expect: the same product in both.
    EXPECT_EQ(first_difference(dtype, NORIA_PROD, first.data(), a.data(), b.data(), kCount), "");
    EXPECT_EQ(first, second) << dtype_name(dtype);
  }
}

TEST_P(KernelsTest, Every_value_of_the_16_bit_floats_is_read_and_rounded_right) {
  for (const noria_dtype dtype : {NORIA_FLOAT16, NORIA_BFLOAT16}) {
    std::vector<uint16_t> a(65536), b(65536), out(65536);
    for (uint32_t i = 0; i < 65536; ++i) a[i] = b[i] = static_cast<uint16_t>(i);
    std::mt19937 random(7);
    std::shuffle(b.begin(), b.end(), random);
    for (const noria_op op : kOps) {
      reduce(dtype, op, out.data(), a.data(), b.data(), a.size());

      // Expect: nearest even, subnormals, infinities and NaN as the reference has them.
      ASSERT_EQ(first_difference(dtype, op, reinterpret_cast<const std::byte*>(out.data()),
                                 reinterpret_cast<const std::byte*>(a.data()),
                                 reinterpret_cast<const std::byte*>(b.data()), a.size()),
                "")
          << dtype_name(dtype) << ' ' << op_name(op);
    }
  }
}

TEST_P(KernelsTest, A_NaN_of_either_side_survives_a_maximum_and_a_minimum) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> a = {nan, 1, nan, 2}, b = {1, nan, nan, 3};
  for (const noria_op op : {NORIA_MAX, NORIA_MIN}) {
    std::vector<float> out(4);
    reduce(NORIA_FLOAT32, op, out.data(), a.data(), b.data(), 4);

    // Expect: NaN wherever one went in, the number elsewhere.
    EXPECT_TRUE(std::isnan(out[0]) && std::isnan(out[1]) && std::isnan(out[2]));
    EXPECT_EQ(out[3], op == NORIA_MAX ? 3 : 2);
  }
}

TEST_P(KernelsTest, Integers_wrap) {
  const std::vector<int32_t> a = {std::numeric_limits<int32_t>::max(), 0x10000};
  const std::vector<int32_t> b = {1, 0x10001};
  std::vector<int32_t> sum(2), product(2);
  reduce(NORIA_INT32, NORIA_SUM, sum.data(), a.data(), b.data(), 2);
  reduce(NORIA_INT32, NORIA_PROD, product.data(), a.data(), b.data(), 2);

  // Expect: arithmetic modulo 2^32.
  EXPECT_EQ(sum[0], std::numeric_limits<int32_t>::min());
  EXPECT_EQ(product[1], 0x10000);

  const std::vector<int64_t> c = {std::numeric_limits<int64_t>::max(), (1LL << 40) + 3};
  const std::vector<int64_t> d = {2, (1LL << 30) + 5};
  std::vector<int64_t> wide(2);
  reduce(NORIA_INT64, NORIA_PROD, wide.data(), c.data(), d.data(), 2);
  EXPECT_EQ(wide[0], -2);
  // (2^40 + 3) (2^30 + 5), of which 2^70 is beyond the word.
  EXPECT_EQ(wide[1], (5LL << 40) + (3LL << 30) + 15);
}

TEST_P(KernelsTest, The_average_divides_the_sum_once) {
  for (const uint32_t divisor : {1U, 2U, 3U, 8U, 7U})
    for (const size_t count : {size_t{1}, size_t{5}, size_t{64}, size_t{1000}}) {
      const auto a = fill(NORIA_FLOAT32, count, 8), b = fill(NORIA_FLOAT32, count, 9);
      std::vector<std::byte> out(a.size());
      add_divide(NORIA_FLOAT32, out.data(), a.data(), b.data(), count, divisor);
      for (size_t i = 0; i < count; ++i)
        // Expect: the correctly rounded quotient, bit for bit.
        ASSERT_EQ(at<float>(out.data(), i),
                  (at<float>(a.data(), i) + at<float>(b.data(), i)) / static_cast<float>(divisor));

      const auto c = fill(NORIA_FLOAT64, count, 8), d = fill(NORIA_FLOAT64, count, 9);
      std::vector<std::byte> wide(c.size());
      add_divide(NORIA_FLOAT64, wide.data(), c.data(), d.data(), count, divisor);
      for (size_t i = 0; i < count; ++i)
        ASSERT_EQ(at<double>(wide.data(), i),
                  (at<double>(c.data(), i) + at<double>(d.data(), i)) / divisor);

      for (const noria_dtype dtype : {NORIA_FLOAT16, NORIA_BFLOAT16}) {
        const Format& format = format_of(dtype);
        const auto e = fill(dtype, count, 8), f = fill(dtype, count, 9);
        std::vector<std::byte> narrow(e.size());
        add_divide(dtype, narrow.data(), e.data(), f.data(), count, divisor);
        for (size_t i = 0; i < count; ++i) {
          const auto x = static_cast<float>(format.decode(at<uint16_t>(e.data(), i)));
          const auto y = static_cast<float>(format.decode(at<uint16_t>(f.data(), i)));
          ASSERT_EQ(at<uint16_t>(narrow.data(), i),
                    format.encode(static_cast<double>((x + y) / static_cast<float>(divisor))));
        }
      }
    }
}

TEST_P(KernelsTest, Addends_and_sum_are_divided_each_by_its_own) {
  for (const Divisors& by : {Divisors{}, Divisors{.a = 4, .b = 4}, Divisors{.b = 32, .sum = 1.5F},
                             Divisors{.a = 3, .b = 3, .sum = 7}})
    for (const size_t count : {size_t{1}, size_t{5}, size_t{64}, size_t{1000}}) {
      const auto a = fill(NORIA_FLOAT32, count, 8), b = fill(NORIA_FLOAT32, count, 9);
      std::vector<std::byte> out(a.size());
      add_scaled(NORIA_FLOAT32, out.data(), a.data(), b.data(), count, by);
      for (size_t i = 0; i < count; ++i)
        ASSERT_EQ(at<float>(out.data(), i),
                  (at<float>(a.data(), i) / by.a + at<float>(b.data(), i) / by.b) / by.sum);

      const auto c = fill(NORIA_FLOAT64, count, 8), d = fill(NORIA_FLOAT64, count, 9);
      std::vector<std::byte> wide(c.size());
      add_scaled(NORIA_FLOAT64, wide.data(), c.data(), d.data(), count, by);
      for (size_t i = 0; i < count; ++i)
        ASSERT_EQ(at<double>(wide.data(), i),
                  (at<double>(c.data(), i) / by.a + at<double>(d.data(), i) / by.b) / by.sum);

      for (const noria_dtype dtype : {NORIA_FLOAT16, NORIA_BFLOAT16}) {
        const Format& format = format_of(dtype);
        const auto e = fill(dtype, count, 8), f = fill(dtype, count, 9);
        std::vector<std::byte> narrow(e.size()), mixed(e.size());
        add_scaled(dtype, narrow.data(), e.data(), f.data(), count, by);
        add_narrow(dtype, mixed.data(), e.data(), reinterpret_cast<const float*>(b.data()), count,
                   by);
        for (size_t i = 0; i < count; ++i) {
          const auto x = static_cast<float>(format.decode(at<uint16_t>(e.data(), i)));
          const auto y = static_cast<float>(format.decode(at<uint16_t>(f.data(), i)));
          const float z = at<float>(b.data(), i);
          ASSERT_EQ(at<uint16_t>(narrow.data(), i),
                    format.encode(static_cast<double>((x / by.a + y / by.b) / by.sum)));
          ASSERT_EQ(at<uint16_t>(mixed.data(), i),
                    format.encode(static_cast<double>((x / by.a + z / by.b) / by.sum)));
        }
      }
    }
}

TEST_P(KernelsTest, What_was_narrowed_is_rounded_once_and_widened_as_it_is) {
  for (const noria_dtype dtype : {NORIA_FLOAT16, NORIA_BFLOAT16})
    for (const float divisor : {1.0F, 8.0F, 3.0F})
      for (const size_t count : {size_t{1}, size_t{7}, size_t{64}, size_t{1001}}) {
        const Format& format = format_of(dtype);
        const auto in = fill(NORIA_FLOAT32, count, 10);
        std::vector<uint16_t> narrow(count + 1, 0xABCD);
        std::vector<float> wide(count + 1, -7);
        to_narrow(dtype, narrow.data(), reinterpret_cast<const float*>(in.data()), count, divisor);
        from_narrow(dtype, wide.data(), narrow.data(), count);
        for (size_t i = 0; i < count; ++i) {
          ASSERT_EQ(narrow[i],
                    format.encode(static_cast<double>(at<float>(in.data(), i) / divisor)));
          ASSERT_EQ(static_cast<double>(wide[i]), format.decode(narrow[i]));
        }
        // Expect: nothing beyond the count.
        EXPECT_EQ(narrow[count], 0xABCD);
        EXPECT_EQ(wide[count], -7);
      }
}

// What the ring makes of the same float16 on each of 1024 ranks, hop by hop.
double averaged_over_1024(double value, float input_divisor) {
  constexpr int kRanks = 1024;
  const Format& format = format_of(NORIA_FLOAT16);
  const uint16_t input = format.encode(value);
  uint16_t sum = input;
  for (int hop = 1; hop < kRanks; ++hop) {
    Divisors by{.a = hop == 1 ? input_divisor : 1, .b = input_divisor};
    if (hop + 1 == kRanks) by.sum = kRanks / input_divisor;
    add_scaled(NORIA_FLOAT16, &sum, &sum, &input, 1, by);
  }
  return format.decode(sum);
}

TEST_P(KernelsTest, C33_Float16_of_1024_ranks_neither_overflows_nor_vanishes_if_both_are_divided) {
  const auto split = static_cast<float>(split_divisor(1024));
  EXPECT_EQ(split, 32);
  // Divided after: the sum of large ones is beyond 65504. Divided before: small ones are gone.
  EXPECT_TRUE(std::isinf(averaged_over_1024(128, 1)));
  EXPECT_EQ(averaged_over_1024(1e-5, 1024), 0);

  // Expect: both come through, within the roundings of as many additions.
  EXPECT_NEAR(averaged_over_1024(128, split), 128, 128 * 0.05);
  EXPECT_NEAR(averaged_over_1024(1e-5, split), 1e-5, 1e-5 * 0.25);
}

TEST(KernelNamesTest, Every_dtype_has_a_name_and_a_size) {
  for (noria_dtype dtype = NORIA_INT8; dtype <= NORIA_BFLOAT16; ++dtype) {
    EXPECT_STRNE(dtype_name(dtype), "unknown dtype");
    EXPECT_NE(dtype_bytes(dtype), 0U);
  }
  // Expect: what is no dtype or op says so, and is neither reducible nor an integer.
  EXPECT_STREQ(dtype_name(10), "unknown dtype");
  EXPECT_STREQ(op_name(5), "unknown op");
  EXPECT_EQ(dtype_bytes(-1), 0U);
  EXPECT_FALSE(is_reducible(10));
  EXPECT_FALSE(is_integer(10));
  EXPECT_FALSE(is_reducible(NORIA_UINT8));
  EXPECT_TRUE(is_integer(NORIA_UINT8));
  EXPECT_FALSE(is_integer(NORIA_BFLOAT16));
}

}  // namespace
}  // namespace noria::bucketing
