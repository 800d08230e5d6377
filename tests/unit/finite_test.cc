#include "bucketing/finite.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace noria::bucketing {
namespace {

struct Format {
  noria_dtype dtype;
  uint32_t bytes;
  std::vector<uint64_t> finite, not_finite;  // bits
};
const Format kFormats[] = {
    {NORIA_FLOAT16, 2, {0, 0x8000, 0x7bff, 0xfbff, 0x0001}, {0x7c00, 0xfc00, 0x7c01, 0xffff}},
    {NORIA_BFLOAT16, 2, {0, 0x8000, 0x7f7f, 0xff7f, 0x0001}, {0x7f80, 0xff80, 0x7f81, 0xffff}},
    {NORIA_FLOAT32,
     4,
     {0, 0x80000000, 0x7f7fffff, 0xff7fffff, 1},
     {0x7f800000, 0xff800000, 0x7f800001, 0xffffffff}},
    {NORIA_FLOAT64,
     8,
     {0, 0x8000000000000000, 0x7fefffffffffffff, 0xffefffffffffffff, 1},
     {0x7ff0000000000000, 0xfff0000000000000, 0x7ff0000000000001, 0xffffffffffffffff}}};

TEST(Finite, One_value_that_is_not_is_found_wherever_it_stands) {
  constexpr uint64_t kCount = 10'000;
  for (const Format& format : kFormats)
    for (const uint64_t bad : format.not_finite)
      for (const uint64_t at : {uint64_t{0}, uint64_t{4095}, uint64_t{4096}, kCount - 1}) {
        std::vector<std::byte> values(kCount * format.bytes);
        const auto put = [&](uint64_t index, uint64_t bits) {
          std::memcpy(&values[index * format.bytes], &bits, format.bytes);
        };
        for (uint64_t i = 0; i < kCount; ++i) put(i, format.finite[i % format.finite.size()]);
        EXPECT_TRUE(is_finite(format.dtype, values.data(), kCount));
        put(at, bad);
        EXPECT_FALSE(is_finite(format.dtype, values.data(), kCount));
        EXPECT_TRUE(is_finite(format.dtype, values.data(), at));  // it stands behind these
      }
}

TEST(Finite, Integers_always_are) {
  const std::vector<std::byte> values(64, std::byte{0xff});
  for (const noria_dtype dtype : {NORIA_INT32, NORIA_INT64})
    EXPECT_TRUE(is_finite(dtype, values.data(), 8));
}

}  // namespace
}  // namespace noria::bucketing
