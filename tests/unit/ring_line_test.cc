#include "bucketing/ring_line.hpp"

#include <gtest/gtest.h>

#include <array>

namespace noria::bucketing {
namespace {

constexpr uint32_t kNumber = 77;

std::array<std::byte, RingLine::kMostBytes> numbers() {
  std::array<std::byte, RingLine::kMostBytes> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i + 1);
  return bytes;
}

RingLine written() {
  RingLine line;
  line.put(numbers().data(), numbers().size());
  line.set_number(kNumber);
  return line;
}

void land(RingLine& slot, const RingLine& from, size_t offset, size_t bytes) {
  std::memcpy(reinterpret_cast<std::byte*>(&slot) + offset,
              reinterpret_cast<const std::byte*>(&from) + offset, bytes);
}

TEST(RingLine, Half_of_it_is_no_line_whichever_half_came_first) {
  for (const size_t first : {size_t{0}, size_t{32}}) {
    RingLine slot;
    land(slot, written(), first, 32);
    EXPECT_FALSE(slot.has_landed(kNumber));
    land(slot, written(), 32 - first, 32);
    EXPECT_TRUE(slot.has_landed(kNumber));
    EXPECT_FALSE(slot.has_landed(kNumber + 2));
  }
}

TEST(RingLine, Numbers_come_out_as_they_were_put_in_however_many) {
  for (uint64_t bytes = 0; bytes <= RingLine::kMostBytes; ++bytes) {
    RingLine line;
    line.put(numbers().data(), bytes);
    EXPECT_EQ(std::memcmp(LineNumbers(line, bytes).data(), numbers().data(), bytes), 0) << bytes;
  }
}

TEST(FitsLine, Takes_what_has_room_and_is_as_the_caller_has_it) {
  EXPECT_TRUE(fits_line(Kind::barrier, nullptr));
  const Part most{.count = 12, .dtype = NORIA_FLOAT32};
  EXPECT_TRUE(fits_line(Kind::all_reduce, &most));
  EXPECT_FALSE(fits_line(Kind::broadcast, &most));
  const auto fits_but = [&](auto change) {
    Part part = most;
    change(part);
    return fits_line(Kind::all_reduce, &part);
  };
  float wide = 0;
  const transport::Region region;
  EXPECT_TRUE(fits_but([](Part& part) { part.count = 0; }));
  EXPECT_FALSE(fits_but([](Part& part) { part.count = 13; }));
  EXPECT_FALSE(fits_but([](Part& part) { part.count = uint64_t{1} << 62; }));
  EXPECT_FALSE(fits_but([](Part& part) { part.dtype = NORIA_FLOAT64; }));
  EXPECT_FALSE(fits_but([](Part& part) { part.input_divisor = 2; }));
  EXPECT_FALSE(fits_but([&](Part& part) { part.wide = &wide; }));
  EXPECT_FALSE(fits_but([&](Part& part) { part.in_region = &region; }));
  EXPECT_FALSE(fits_but([&](Part& part) { part.out_region = &region; }));
}

}  // namespace
}  // namespace noria::bucketing
