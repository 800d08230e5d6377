#include "verbs/transport/credit.hpp"

#include <gtest/gtest.h>

#include <cstring>

namespace noria::transport {
namespace {

constexpr uint64_t kSequence = 77;

wire::Credit credit_of(uint64_t sequence, uint64_t address, uint64_t bytes,
                       const std::array<uint32_t, kMaxRails>& rkeys) {
  wire::Credit credit;
  set_credit(&credit, sequence, wire::match_of(9, 3), address, bytes, rkeys);
  return credit;
}

wire::Credit written() { return credit_of(kSequence, 0x1000, 512, {1, 2, 3, 4, 5, 6, 7, 8}); }

// Copies `bytes` of the credit as a device would land them.
void land(wire::Credit& slot, const wire::Credit& from, size_t offset, size_t bytes) {
  std::memcpy(reinterpret_cast<std::byte*>(&slot) + offset,
              reinterpret_cast<const std::byte*>(&from) + offset, bytes);
}

TEST(Credit, Is_read_once_both_halves_are_there) {
  wire::Credit slot;
  land(slot, written(), 0, sizeof slot);
  const CreditView credit = read_credit(slot, kSequence);
  ASSERT_TRUE(credit);
  EXPECT_EQ(credit.address(), 0x1000u);
  EXPECT_EQ(credit.bytes(), 512u);
  EXPECT_EQ(credit.match(), wire::match_of(9, 3));
  for (unsigned rail = 0; rail < kMaxRails; ++rail)
    EXPECT_EQ(credit.rkey(wire::Credit::word_of_key(rail)), rail + 1);
}

TEST(Credit, Offers_no_more_than_its_field_can_say) {
  wire::Credit slot = credit_of(kSequence, 0x1000, uint64_t{1} << 40, {});
  EXPECT_EQ(read_credit(slot, kSequence).bytes(), UINT32_MAX);
}

TEST(Credit, Half_of_it_is_not_a_credit_whichever_half_came_first) {
  for (const size_t first : {size_t{0}, size_t{32}}) {
    wire::Credit slot;
    land(slot, written(), first, 32);
    EXPECT_FALSE(read_credit(slot, kSequence));
    land(slot, written(), 32 - first, 32);
    EXPECT_TRUE(read_credit(slot, kSequence));
  }
}

TEST(Credit, Landing_word_by_word_is_valid_only_with_the_last_word) {
  wire::Credit slot;
  for (size_t offset = 0; offset < sizeof slot; offset += 8) {
    EXPECT_FALSE(read_credit(slot, kSequence)) << "before the word at " << offset;
    land(slot, written(), offset, 8);
  }
  EXPECT_TRUE(read_credit(slot, kSequence));
}

TEST(Credit, Of_another_lap_is_not_taken) {
  wire::Credit slot = written();
  EXPECT_FALSE(read_credit(slot, kSequence + kWindow));
  EXPECT_FALSE(read_credit(slot, kSequence - kWindow));

  // One half new, one half of the lap before.
  land(slot, credit_of(kSequence + kWindow, 0x2000, 1, {}), 0, 32);
  EXPECT_FALSE(read_credit(slot, kSequence));
  EXPECT_FALSE(read_credit(slot, kSequence + kWindow));
}

TEST(Credit, Zeroed_memory_holds_none_for_the_first_lap) {
  wire::Credit slot;
  for (uint64_t n = wire::kFirstSequence; n < wire::kFirstSequence + kWindow; ++n)
    EXPECT_FALSE(read_credit(slot, n));
}

TEST(Credit, Numbers_go_on_past_the_width_of_their_field) {
  for (uint64_t n = (uint64_t{1} << 32) - 2; n < (uint64_t{1} << 32) + 2; ++n) {
    wire::Credit slot = credit_of(n, n, 1, {});
    const CreditView credit = read_credit(slot, n);
    ASSERT_TRUE(credit);
    EXPECT_EQ(credit.address(), n);
    EXPECT_FALSE(read_credit(slot, n + kWindow));
  }
}

}  // namespace
}  // namespace noria::transport
