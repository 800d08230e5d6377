#include "verbs/soft/tcp_wire.hpp"

#include <gtest/gtest.h>

#include "tests/support/hex_bytes.hpp"

namespace noria::soft::tcp {
namespace {

using test::hex;

// A change of any of these is a new version.
TEST(Tcp_wire_golden_bytes, Version_and_kinds) {
  EXPECT_EQ(kVersion, 2U);
  EXPECT_EQ(static_cast<int>(Kind::hello), 1);
  EXPECT_EQ(static_cast<int>(Kind::answer), 8);
}

TEST(Tcp_wire_golden_bytes, Header) {
  EXPECT_EQ(hex(Header{Kind::request, 96, 0x12345}), "07 00 60 00 45 23 01 00");
}

TEST(Tcp_wire_golden_bytes, Hello) {
  EXPECT_EQ(hex(Hello{.slot = 0x3ff, .to_slot = 7, .cookie = {0x1122334455667788, 9}}),
            "4e 4f 52 49 41 54 43 50 02 0*3 ff 03 0*2 07 0*15 88 77 66 55 44 33 22 11 09 0*23");
}

TEST(Tcp_wire_golden_bytes, Watch) { EXPECT_EQ(hex(Watch{.qpn = 0xabcdef}), "ef cd ab 0*5"); }

TEST(Tcp_wire_golden_bytes, Target) {
  const Target target{.qpn = 1,
                      .remote_qpn = 2,
                      .state = 0x0102030405060708,
                      .gid = {0xaa},
                      .lid = 3,
                      .pd = 4,
                      .max_reads = 5,
                      .rnr_timer = 6,
                      .rq_psn = 7,
                      .path_mtu = 8,
                      .has_shared_receives = 9,
                      .max_message = 14,
                      .rq_base = 10,
                      .rq_tail = 11,
                      .rq_head = 12,
                      .supply_seen = 13};
  EXPECT_EQ(hex(target),
            "01 0*3 02 0*3 08 07 06 05 04 03 02 01 aa 0*15 03 0*3 04 0*3 05 0*3 06 0*3 07 0*3 08 "
            "0*3 09 0*3 0e 0*3 0a 0*7 0b 0*7 0c 0*7 0d 0*39");
}

TEST(Tcp_wire_golden_bytes, Bind) {
  EXPECT_EQ(hex(Bind{.source = {1, 2}, .target = {3, 4}}), "01 0*3 02 0*3 03 0*3 04 0*3");
}

TEST(Tcp_wire_golden_bytes, Want) {
  EXPECT_EQ(hex(Want{.target = {1, 2}, .number = 0x100}), "01 0*3 02 0*4 01 0*6");
}

TEST(Tcp_wire_golden_bytes, Fault) { EXPECT_EQ(hex(Fault{.target = {1, 2}}), "01 0*3 02 0*3"); }

TEST(Tcp_wire_golden_bytes, Request) {
  const Request request{.source = {1, 2},
                        .target = {3, 4},
                        .number = 5,
                        .receive = 6,
                        .iova = 7,
                        .compare_add = 8,
                        .swap = 9,
                        .offset = 10,
                        .total = 11,
                        .bytes = 12,
                        .key = 13,
                        .work = Work::send,
                        .flags = kIsLast | kHasImm,
                        .imm = 14};
  EXPECT_EQ(hex(request),
            "01 0*3 02 0*3 03 0*3 04 0*3 05 0*7 06 0*7 07 0*7 08 0*7 09 0*7 0a 0*7 0b 0*7 0c 0*3 "
            "0d 0*3 05 05 0*2 0e 0*11");
}

TEST(Tcp_wire_golden_bytes, Answer) {
  EXPECT_EQ(hex(Answer{.source = {1, 2}, .number = 3, .code = kNotNow}),
            "01 0*3 02 0*3 03 0*7 ff ff ff ff 0*4");
}

}  // namespace
}  // namespace noria::soft::tcp
