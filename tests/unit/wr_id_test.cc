#include "verbs/transport/wr_id.hpp"

#include <gtest/gtest.h>

namespace noria::transport {
namespace {

TEST(WrId, Gives_back_every_part_at_its_limits) {
  const uint64_t base = WrId::base(0xffff, 0xfffe);
  for (const WrKind kind : {WrKind::piece, WrKind::receive, WrKind::credit, WrKind::read}) {
    const WrId id(WrId::make(base, kind, 255, 0xffff));
    EXPECT_EQ(id.seat(), 0xffff);
    EXPECT_EQ(id.base(), base);
    EXPECT_EQ(id.kind(), kind);
    EXPECT_EQ(id.qp(), 255u);
    EXPECT_EQ(id.slot(), 0xffffu);
  }
}

TEST(WrId, Tells_a_seat_from_its_successor) {
  EXPECT_NE(WrId(WrId::make(WrId::base(3, 1), WrKind::read, 0, 0)).base(), WrId::base(3, 2));
}

}  // namespace
}  // namespace noria::transport
