// What the software HCA counts, by an extension of its own (base/verbs_extensions.hpp).

#include "tests/support/verbs_link.hpp"

namespace noria::test {
namespace {

TEST(SoftCounters, Counts_the_payload_that_passed) {
  run_pair([](Post& p) {
    Link link(p, {.bytes = 1 << 20});
    VerbsStats before, after;
    ASSERT_EQ(verbs().noria_stats(link.hca.context(), &before), 0);
    link.wire.meet();
    // Side 0 writes 100000 bytes, then reads 50000.
    if (p.side == 0) {
      ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_WRITE,
                                     .id = 1,
                                     .pieces = link.piece(0, 100000),
                                     .remote = link.at(0)}),
                0);
      ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_READ,
                                     .id = 2,
                                     .pieces = link.piece(0, 50000),
                                     .remote = link.at(0)}),
                0);
      expect_completion(link.cq.get(), 1);
      expect_completion(link.cq.get(), 2);
    }
    link.wire.meet();
    ASSERT_EQ(verbs().noria_stats(link.hca.context(), &after), 0);
    EXPECT_EQ(after.sent_bytes - before.sent_bytes, p.side == 0 ? 100000u : 50000u);
    EXPECT_EQ(after.received_bytes - before.received_bytes, p.side == 0 ? 50000u : 100000u);
    link.wire.meet();
  });
}

}  // namespace
}  // namespace noria::test
