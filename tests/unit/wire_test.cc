#include "verbs/transport/wire.hpp"

#include <gtest/gtest.h>

#include <cstring>
#include <string>

#include "tests/support/hex_bytes.hpp"
#include "verbs/transport/handshake.hpp"

namespace noria::transport::wire {
namespace {

using test::hex;

Token token() {
  Token token;
  for (size_t i = 0; i < token.size(); ++i) token[i] = static_cast<std::byte>(0xa0 + i);
  return token;
}

constexpr const char* kTokenHex = "a0 a1 a2 a3 a4 a5 a6 a7 a8 a9 aa ab ac ad ae af";

Ends ends() {
  Ends ends;
  ends.rails = 1;
  ends.qps = 2;
  ends.rail[0] = {.gid = {0xfe, 0x80},
                  .lid = 0x1234,
                  .mtu = 5,
                  .read_depth = 16,
                  .is_ethernet = 1,
                  .rate_100mbps = 2458};
  ends.qp[0] = {
      .qpn = 0x00112233, .psn = 0x00445566, .ece_vendor = 0x2c9, .ece_options = 0x30000003};
  ends.qp[1] = {.qpn = 0x77, .psn = 0x88};
  return ends;
}

constexpr const char* kEndsHex =
    "01 02 0*6 fe 80 0*14 34 12 05 10 01 00 9a 09 0*232 33 22 11 00 66 55 44 00 c9 02 0*2 03 0*2 "
    "30 77 0*3 88 0*235";

TEST(Wire_golden_bytes, Handle) {
  Handle handle;
  handle.provider_kind = 2;
  handle.family = 4;
  handle.token = token();
  handle.fingerprint = 0x1122334455667788;
  handle.address = {127, 0, 0, 1};
  handle.port = 0x1f90;
  handle.rails = 3;
  handle.request_bytes = 0x800000;
  EXPECT_EQ(hex(handle), std::string("31 4e 52 48 04 00 02 04 ") + kTokenHex +
                             " 88 77 66 55 44 33 22 11 7f 0*2 01 0*12 90 1f 03 0*3 80 0*73");
}

TEST(Wire_golden_bytes, Hello) {
  Hello hello;
  hello.token = token();
  hello.fingerprint = 0x1122334455667788;
  hello.provider_kind = 1;
  hello.wants_records = 1;
  hello.credits = {.address = 0xdead0000beef, .bytes = 4096, .rkeys = {1, 2, 3, 4}};
  hello.ends = ends();
  hello.name = {'h', ':', '7'};
  EXPECT_EQ(hex(hello), std::string("31 4e 52 43 04 00 01 0*2 03 0*6 ") + kTokenHex +
                            " 88 77 66 55 44 33 22 11 01 01 0*6 ef be 0*2 ad de 0*3 10 0*6 "
                            "01 0*3 02 0*3 03 0*3 04 0*3 " +
                            kEndsHex + " 68 3a 37 0*165");
}

TEST(Wire_golden_bytes, Accept) {
  Accept accept;
  accept.ends = ends();
  accept.name = {'h'};
  accept.records = {.address = 0xdead0000beef, .rkeys = {1, 2, 3, 4, 5, 6, 7, 8}};
  EXPECT_EQ(
      hex(accept),
      std::string("31 4e 52 43 04 00 02 0*2 03 0*6 ") + kEndsHex +
          " 68 0*63 ef be 0*2 ad de 0*2 01 0*3 02 0*3 03 0*3 04 0*3 05 0*3 06 0*3 07 0*3 08 0*131");
}

TEST(Wire_golden_bytes, Refuse) {
  Refuse refuse;
  refuse.reason = Reason::fingerprint;
  refuse.listener_value = 0x0102;
  refuse.connector_value = 0x0304;
  EXPECT_EQ(hex(refuse), "31 4e 52 43 04 00 03 00 40 0*7 03 0*7 02 01 0*6 04 03 0*30");
}

TEST(Wire_golden_bytes, Ready) { EXPECT_EQ(hex(Ready{}), "31 4e 52 43 04 00 04 00 10 0*7"); }

TEST(Wire_golden_bytes, Close) {
  Close close;
  close.is_failure = 1;
  close.cause = {'w', 'h', 'y'};
  EXPECT_EQ(hex(close), "31 4e 52 43 04 00 05 0*2 01 0*6 01 0*7 77 68 79 0*229");
}

TEST(Wire_golden_bytes, Epoch) {
  Epoch epoch;
  epoch.first_sequence = 0x0102030405060708;
  epoch.epoch = 9;
  epoch.qpn = 0x0a0b0c;
  epoch.psn = 0x0d0e0f;
  epoch.qp = 3;
  EXPECT_EQ(hex(epoch),
            "31 4e 52 43 04 00 06 00 40 0*7 08 07 06 05 04 03 02 01 09 0*3 0c 0b 0a 00 0f 0e 0d 00 "
            "03 0*27");
}

TEST(Wire_golden_bytes, Credit) {
  Credit credit;
  credit.address = 0x7f0011223344;
  credit.bytes = 0x100;
  credit.match = match_of(0x0a0b0c0d, 8);
  credit.first_keys = {0x11, 0x22};
  credit.other_keys = {0x33, 0x44, 0x55, 0x66, 0x77, 0x88};
  credit.sequence = credit.sequence_again = 0x01020304;
  EXPECT_EQ(hex(credit),
            "44 33 22 11 00 7f 0*2 0d 0c 0b 0a 08 0*4 01 0*2 11 0*3 22 0*3 04 03 02 01 33 0*3 44 "
            "0*3 55 0*3 66 0*3 77 0*3 "
            "88 0*7 04 03 02 01");
}

TEST(Wire_golden_bytes, Immediate) {
  EXPECT_EQ((Immediate{.sequence = 1, .epoch = 0, .pieces = 1}.pack()), 0x00000001u);
  EXPECT_EQ((Immediate{.sequence = 0x12345, .epoch = 0, .pieces = 1}.pack()), 0x00012345u);
  EXPECT_EQ((Immediate{.sequence = 0, .epoch = 1, .pieces = 1}.pack()), 0x00100000u);
  EXPECT_EQ((Immediate{.sequence = 0, .epoch = 0, .pieces = 16}.pack()), 0x78000000u);
  EXPECT_EQ((Immediate::recorded(0, 0, 1).pack()), 0x04000000u);
}

TEST(Match, Keeps_tag_and_members_apart) {
  for (const uint32_t tag : {0u, 1u, 0x7fffffffu, 0xffffffffu})
    for (const uint32_t members : {0u, 1u, 8u, 0xffffffffu}) {
      EXPECT_EQ(tag_in(match_of(tag, members)), tag);
      EXPECT_EQ(members_in(match_of(tag, members)), members);
    }
}

TEST(Words_of_a_peer, Are_one_line_and_end_where_their_field_ends) {
  EXPECT_EQ(text_of(std::array<char, 8>{'h', ':', '7'}), "h:7");
  EXPECT_EQ(text_of(std::array<char, 4>{'a', '\n', '\x1b', '\xff'}), "a???");
  EXPECT_EQ(text_of(std::array<char, 4>{}), "");
}

TEST(Immediate, Survives_the_wire_for_every_value_of_every_field) {
  for (uint32_t sequence = 0; sequence < 1u << Immediate::kSequenceBits; ++sequence)
    EXPECT_EQ(Immediate::unpack(Immediate{.sequence = sequence}.pack()).sequence, sequence);
  for (uint32_t epoch = 0; epoch < 1u << Immediate::kEpochBits; ++epoch)
    EXPECT_EQ(Immediate::unpack(Immediate{.epoch = epoch}.pack()).epoch, epoch);
  for (uint32_t pieces = 1; pieces <= 1u << Immediate::kPiecesBits; ++pieces)
    EXPECT_EQ(Immediate::unpack(Immediate{.pieces = pieces}.pack()).pieces, pieces);
}

TEST(Immediate, That_speaks_of_a_record_is_of_no_message_at_the_first_look) {
  const uint32_t plain = Immediate::of(5, 1, 7).pack(),
                 recorded = Immediate::recorded(5, 1, 7).pack();
  EXPECT_EQ(recorded, plain | Immediate::kRecorded);
  EXPECT_TRUE(Immediate::unpack(recorded).is_recorded);
  EXPECT_FALSE(Immediate::unpack(plain).is_recorded);
  EXPECT_EQ(Immediate::message_in(recorded), Immediate::message_of(5, 1) | Immediate::kRecorded);
  EXPECT_EQ(Immediate::pieces_in(recorded), 7u);
  EXPECT_EQ(Immediate::slot_in(recorded), 5u);
}

TEST(Immediate, Wraps_without_touching_its_neighbours) {
  // Every message number past the width of its field, twice.  Expect: it counts on, and a number is
  // told from all others in any window around it.
  constexpr uint64_t kRound = uint64_t{1} << Immediate::kSequenceBits;
  for (uint64_t n = 1; n <= 2 * kRound + 2; ++n) {
    const Immediate imm = Immediate::of(n, 0, 1);
    EXPECT_EQ(imm.sequence, n % kRound);
    EXPECT_EQ(Immediate::slot_in(imm.pack()), n % kWindow);
    EXPECT_NE(imm.pack(), Immediate::of(n + kWindow, 0, 1).pack());
    EXPECT_EQ(Immediate::message_in(Immediate::of(n, 3, 7).pack()), Immediate::message_of(n, 3));
    EXPECT_NE(Immediate::message_in(imm.pack()), Immediate::message_of(n + kWindow, 0));
    EXPECT_NE(Immediate::message_in(imm.pack()), Immediate::message_of(n, 1));
    EXPECT_NE(Immediate::message_in(imm.pack()), Immediate::kNoMessage);
  }
  EXPECT_EQ(Immediate::of(1, 0, 1).pack(), Immediate::of(1 + kRound, 0, 1).pack());

  // The epoch past its width.  Expect: low bits, no spill into the number of pieces.
  EXPECT_EQ(Immediate::of(5, 1u << Immediate::kEpochBits, 3), Immediate::of(5, 0, 3));
  EXPECT_EQ(Immediate::of(5, (1u << Immediate::kEpochBits) + 1, 3), Immediate::of(5, 1, 3));
}

}  // namespace
}  // namespace noria::transport::wire
