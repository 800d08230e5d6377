#include "verbs/transport/credit.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace noria::transport {
namespace {

constexpr uint64_t kSequence = 77;

wire::Credit written() { return make_credit(kSequence, 0x1000, 512, {1, 2, 3, 4}); }

// Copies `bytes` of the credit as a device would land them.
void land(wire::Credit& slot, const wire::Credit& from, size_t offset, size_t bytes) {
  std::memcpy(reinterpret_cast<std::byte*>(&slot) + offset,
              reinterpret_cast<const std::byte*>(&from) + offset, bytes);
}

TEST(Credit, Is_read_once_both_halves_are_there) {
  wire::Credit slot, read;
  land(slot, written(), 0, sizeof slot);
  ASSERT_TRUE(read_credit(slot, kSequence, &read));
  EXPECT_EQ(read.address, 0x1000u);
  EXPECT_EQ(read.bytes, 512u);
  EXPECT_EQ(read.rkeys, (std::array<uint32_t, 4>{1, 2, 3, 4}));
}

TEST(Credit, Half_of_it_is_not_a_credit_whichever_half_came_first) {
  wire::Credit read;
  for (const size_t first : {size_t{0}, size_t{32}}) {
    wire::Credit slot;
    land(slot, written(), first, 32);
    EXPECT_FALSE(read_credit(slot, kSequence, &read));
    land(slot, written(), 32 - first, 32);
    EXPECT_TRUE(read_credit(slot, kSequence, &read));
  }
}

TEST(Credit, Landing_word_by_word_is_valid_only_with_the_last_word) {
  wire::Credit slot, read;
  for (size_t offset = 0; offset < sizeof slot; offset += 8) {
    EXPECT_FALSE(read_credit(slot, kSequence, &read)) << "before the word at " << offset;
    land(slot, written(), offset, 8);
  }
  EXPECT_TRUE(read_credit(slot, kSequence, &read));
}

TEST(Credit, Of_another_lap_is_not_taken) {
  wire::Credit slot = written(), read;
  EXPECT_FALSE(read_credit(slot, kSequence + kWindow, &read));
  EXPECT_FALSE(read_credit(slot, kSequence - kWindow, &read));

  // One half new, one half of the lap before.
  land(slot, make_credit(kSequence + kWindow, 0x2000, 1, {}), 0, 32);
  EXPECT_FALSE(read_credit(slot, kSequence, &read));
  EXPECT_FALSE(read_credit(slot, kSequence + kWindow, &read));
}

TEST(Credit, Zeroed_memory_holds_none_for_the_first_lap) {
  wire::Credit slot, read;
  for (uint64_t n = wire::kFirstSequence; n < wire::kFirstSequence + kWindow; ++n)
    EXPECT_FALSE(read_credit(slot, n, &read));
}

TEST(Credit, Numbers_go_on_past_the_width_of_their_field) {
  wire::Credit read;
  for (uint64_t n = (uint64_t{1} << 32) - 2; n < (uint64_t{1} << 32) + 2; ++n) {
    wire::Credit slot = make_credit(n, n, 1, {});
    ASSERT_TRUE(read_credit(slot, n, &read));
    EXPECT_EQ(read.address, n);
    EXPECT_FALSE(read_credit(slot, n + kWindow, &read));
  }
}

}  // namespace
}  // namespace noria::transport
