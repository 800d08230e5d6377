// What the software HCA counts, by an extension of its own (base/verbs_extensions.hpp).

#include <cstdlib>

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

// Of what its receive takes in, however it travels.
TEST(SoftCounters, Counts_messages_on_both_sides) {
  run_pair([](Post& p) {
    Link link(p);
    VerbsStats before, after;
    ASSERT_EQ(verbs().noria_stats(link.hca.context(), &before), 0);
    for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(post_recv(link.qp.get(), i, link.piece(0, 1000)), 0);
    link.wire.meet();
    uint64_t id = 0;
    for (const uint32_t bytes : {0u, 8u, 200u, 1000u}) {
      if (p.side == 0) {
        ASSERT_EQ(post(link.qp.get(), {.id = id, .pieces = link.piece(0, bytes)}), 0);
      }
      expect_completion(link.cq.get(), id++);
    }
    ASSERT_EQ(verbs().noria_stats(link.hca.context(), &after), 0);
    EXPECT_EQ(after.sent_bytes - before.sent_bytes, p.side == 0 ? 1208u : 0u);
    EXPECT_EQ(after.sent_messages - before.sent_messages, p.side == 0 ? 4u : 0u);
    EXPECT_EQ(after.received_bytes - before.received_bytes, p.side == 1 ? 1208u : 0u);
    EXPECT_EQ(after.received_messages - before.received_messages, p.side == 1 ? 4u : 0u);
    link.wire.meet();
    // Expect: the counts outlive the queue pair.
    link.qp.reset();
    ASSERT_EQ(verbs().noria_stats(link.hca.context(), &after), 0);
    EXPECT_EQ(after.received_bytes - before.received_bytes, p.side == 1 ? 1208u : 0u);
    link.wire.meet();
  });
}

TEST(SoftCounters, Counts_for_each_device_what_passed_its_own_port) {
  ::setenv("XDG_RUNTIME_DIR", testing::TempDir().c_str(), 1);
  ::setenv("NORIA_SOFT_DEVICES", "name=mlx0;name=mlx1;name=mlx2", 1);
  Crew crew({[](Post&) {
    // From the first to the second, and a read of the second by the first.
    const Hca first(0), second(1), third(2);
    const auto cq = first.make_cq(), other_cq = second.make_cq();
    auto qp = first.make_qp(cq.get()), other = second.make_qp(other_cq.get());
    first.connect(qp.get(), second.address_of(other.get()));
    second.connect(other.get(), first.address_of(qp.get()));
    const auto from = first.make_buffer(4096), to = second.make_buffer(4096);
    const Region there{to->address(), to->rkey()};
    ASSERT_EQ(post(qp.get(), {.opcode = IBV_WR_RDMA_WRITE,
                              .id = 1,
                              .pieces = {{from.get(), 0, 4000}},
                              .remote = there}),
              0);
    ASSERT_EQ(post(qp.get(), {.opcode = IBV_WR_RDMA_READ,
                              .id = 2,
                              .pieces = {{from.get(), 0, 300}},
                              .remote = there}),
              0);
    expect_completion(cq.get(), 1);
    expect_completion(cq.get(), 2);
    const auto expect = [](const Hca& hca, uint64_t sent, uint64_t received) {
      VerbsStats stats;
      EXPECT_EQ(verbs().noria_stats(hca.context(), &stats), 0);
      EXPECT_EQ(stats.sent_bytes, sent);
      EXPECT_EQ(stats.received_bytes, received);
      EXPECT_EQ(stats.sent_messages, sent == 0 ? 0u : 1u);
      EXPECT_EQ(stats.received_messages, received == 0 ? 0u : 1u);
    };
    expect(first, 4000, 300);
    expect(second, 300, 4000);
    expect(third, 0, 0);
    // Expect: the counts outlive the queue pair.
    qp.reset();
    expect(first, 4000, 300);
  }});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
  ::unsetenv("NORIA_SOFT_DEVICES");
}

}  // namespace
}  // namespace noria::test
