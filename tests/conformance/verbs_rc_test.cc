// What the specification says of a reliable connection, sentence by sentence: two processes, data
// compared byte for byte.
//
// The ctest entry chooses copy path and placement by environment; every test runs with memory of
// the process's own and with memory that peers map.

#include <atomic>

#include "tests/support/verbs_link.hpp"

namespace noria::test {
namespace {

NORIA_TEST_BOTH_MEMORIES(VerbsRc);

constexpr uint32_t kSizes[] = {1,  7,   8,   9,   44,   45,   63,    64,
                               65, 255, 256, 257, 4095, 4097, 65536, 1048577};
constexpr size_t kLargest = 1048577;
constexpr uint64_t kInbound = 2 << 20;  // where the peer's bytes come in, behind our own

// Our side of one size: our bytes from `from` on, and nothing yet where the peer's come in. Gives
// the seed of our bytes; the peer's is its neighbour.
uint64_t lay_out(const Link& link, const Post& p, uint32_t bytes, uint64_t from = 0) {
  const uint64_t seed = bytes * 2 + static_cast<uint64_t>(p.side);
  paint(link.buffer->data() + from, bytes, seed);
  std::memset(link.buffer->data() + kInbound, 0xee, kLargest + 16);
  return seed;
}

TEST_P(VerbsRc, Write_lands_byte_for_byte_and_nowhere_else) {
  run_pair([](Post& p) {
    Link link(p, {.bytes = 2 * kInbound, .memory = GetParam()});
    for (const uint32_t bytes : kSizes) {
      const uint64_t seed = lay_out(link, p, bytes);
      link.wire.meet();
      // Both sides write at once, to an odd address.
      ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_WRITE,
                                     .id = bytes,
                                     .pieces = link.piece(0, bytes),
                                     .remote = link.at(kInbound + 3)}),
                0);
      const ibv_wc wc = expect_completion(link.cq.get(), bytes);
      EXPECT_EQ(wc.opcode, IBV_WC_RDMA_WRITE);
      EXPECT_EQ(wc.qp_num, link.qp->qp_num);
      link.wire.meet();
      // Expect: the peer's bytes, and the neighbours untouched.
      const uint8_t* in = link.buffer->data() + kInbound;
      EXPECT_EQ(first_wrong(in + 3, bytes, seed ^ 1), bytes);
      EXPECT_EQ(in[2], 0xee);
      EXPECT_EQ(in[3 + bytes], 0xee) << "after " << bytes;
    }
  });
}

TEST_P(VerbsRc, Read_brings_the_peers_bytes) {
  run_pair([](Post& p) {
    Link link(p, {.bytes = 2 * kInbound, .memory = GetParam()});
    for (const uint32_t bytes : kSizes) {
      const uint64_t seed = lay_out(link, p, bytes, 1);
      link.wire.meet();
      ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_READ,
                                     .id = bytes,
                                     .pieces = link.piece(kInbound + 5, bytes),
                                     .remote = link.at(1)}),
                0);
      const ibv_wc wc = expect_completion(link.cq.get(), bytes);
      EXPECT_EQ(wc.opcode, IBV_WC_RDMA_READ);
      EXPECT_EQ(wc.byte_len, bytes);
      const uint8_t* in = link.buffer->data() + kInbound;
      EXPECT_EQ(first_wrong(in + 5, bytes, seed ^ 1), bytes);
      EXPECT_EQ(in[4], 0xee);
      EXPECT_EQ(in[5 + bytes], 0xee) << "after " << bytes;
      link.wire.meet();
    }
  });
}

TEST_P(VerbsRc, Send_fills_the_posted_receive) {
  run_pair([](Post& p) {
    Link link(p, {.bytes = 2 * kInbound, .memory = GetParam()});
    for (const uint32_t bytes : kSizes) {
      const uint64_t seed = lay_out(link, p, bytes);
      ASSERT_EQ(post_recv(link.qp.get(), 1000 + bytes, link.piece(kInbound, kLargest)), 0);
      link.wire.meet();
      ASSERT_EQ(post(link.qp.get(), {.id = bytes, .pieces = link.piece(0, bytes)}), 0);
      // Either completion may come first.
      for (int i = 0; i < 2; ++i) {
        const ibv_wc wc = wait_completion(link.cq.get());
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
        if (wc.wr_id != 1000 + bytes) continue;
        EXPECT_EQ(wc.opcode, IBV_WC_RECV);
        EXPECT_EQ(wc.byte_len, bytes);
        EXPECT_EQ(wc.wc_flags & IBV_WC_WITH_IMM, 0u);
        EXPECT_EQ(first_wrong(link.buffer->data() + kInbound, bytes, seed ^ 1), bytes);
        EXPECT_EQ(link.buffer->data()[kInbound + bytes], 0xee);
      }
      link.wire.meet();
    }
  });
}

TEST_P(VerbsRc, Write_with_immediate_consumes_a_receive_after_its_data_is_in_place) {
  run_pair([](Post& p) {
    Link link(p, {.bytes = 2 * kInbound, .memory = GetParam()});
    for (const uint32_t bytes : kSizes) {
      const uint64_t seed = lay_out(link, p, bytes);
      // A receive without memory: the immediate needs none.
      ASSERT_EQ(post_recv(link.qp.get(), 7, {}), 0);
      link.wire.meet();
      ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                                     .id = 8,
                                     .pieces = link.piece(0, bytes),
                                     .remote = link.at(kInbound),
                                     .imm = 0xabc00000u + bytes}),
                0);
      for (int i = 0; i < 2; ++i) {
        const ibv_wc wc = wait_completion(link.cq.get());
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
        if (wc.wr_id == 8) {
          EXPECT_EQ(wc.opcode, IBV_WC_RDMA_WRITE);
          continue;
        }
        EXPECT_EQ(wc.wr_id, 7u);
        EXPECT_EQ(wc.opcode, IBV_WC_RECV_RDMA_WITH_IMM);
        EXPECT_NE(wc.wc_flags & IBV_WC_WITH_IMM, 0u);
        EXPECT_EQ(be32toh(wc.imm_data), 0xabc00000u + bytes);
        EXPECT_EQ(wc.byte_len, bytes);
        EXPECT_EQ(wc.qp_num, link.qp->qp_num);
        EXPECT_EQ(first_wrong(link.buffer->data() + kInbound, bytes, seed ^ 1), bytes);
      }
      link.wire.meet();
    }
  });
}

TEST_P(VerbsRc, Send_with_immediate_carries_both) {
  run_pair([](Post& p) {
    Link link(p, {.bytes = 8192, .memory = GetParam()});
    paint(link.buffer->data(), 1000, static_cast<uint64_t>(p.side));
    ASSERT_EQ(post_recv(link.qp.get(), 7, link.piece(4096, 4096)), 0);
    link.wire.meet();
    ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_SEND_WITH_IMM,
                                   .id = 8,
                                   .pieces = link.piece(0, 1000),
                                   .imm = 0x01020304}),
              0);
    for (int i = 0; i < 2; ++i) {
      const ibv_wc wc = wait_completion(link.cq.get());
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      if (wc.wr_id == 8) continue;
      EXPECT_EQ(wc.opcode, IBV_WC_RECV);
      EXPECT_NE(wc.wc_flags & IBV_WC_WITH_IMM, 0u);
      EXPECT_EQ(be32toh(wc.imm_data), 0x01020304u);
      EXPECT_EQ(first_wrong(link.buffer->data() + 4096, 1000, static_cast<uint64_t>(1 - p.side)),
                1000u);
    }
    link.wire.meet();
  });
}

TEST_P(VerbsRc, Inline_data_may_be_overwritten_once_post_returns) {
  run_pair([](Post& p) {
    Link link(p, {.bytes = 8192, .memory = GetParam()});
    const auto side = static_cast<uint64_t>(p.side);
    for (uint64_t i = 0; i < 40; ++i)
      ASSERT_EQ(post_recv(link.qp.get(), 100 + i, link.piece(4096 + i * 64, 64)), 0);
    link.wire.meet();
    // Write to 1024.., and send, all from the same 64 bytes.
    for (uint64_t i = 0; i < 40; ++i) {
      paint(link.buffer->data(), 64, 2 * i + side);
      const bool send = i % 2 == 0;
      ASSERT_EQ(post(link.qp.get(), {.opcode = send ? IBV_WR_SEND : IBV_WR_RDMA_WRITE_WITH_IMM,
                                     .id = i,
                                     .pieces = link.piece(0, 64),
                                     .remote = link.at(1024 + i * 64),
                                     .flags = IBV_SEND_INLINE | IBV_SEND_SIGNALED}),
                0);
      std::memset(link.buffer->data(), 0xdd, 64);
    }
    for (int i = 0; i < 80; ++i) EXPECT_EQ(wait_completion(link.cq.get()).status, IBV_WC_SUCCESS);
    for (uint64_t i = 0; i < 40; ++i) {
      const uint64_t offset = (i % 2 == 0 ? 4096 : 1024) + i * 64;
      EXPECT_EQ(first_wrong(link.buffer->data() + offset, 64, 2 * i + (side ^ 1)), 64u) << i;
    }
    link.wire.meet();
  });
}

TEST_P(VerbsRc, Scatter_lists_gather_and_scatter_in_order) {
  run_pair([](Post& p) {
    Link link(p, {.bytes = 65536, .memory = GetParam()});
    const auto side = static_cast<uint64_t>(p.side);
    Buffer* b = link.buffer.get();
    // 5 + 0 + 3000 + 7 bytes of one pattern, from four places.
    paint(b->data() + 100, 5, side, 0);
    paint(b->data() + 4001, 3000, side, 5);
    paint(b->data() + 300, 7, side, 3005);
    const std::vector<Piece> out = {{b, 100, 5}, {b, 200, 0}, {b, 4001, 3000}, {b, 300, 7}};
    const std::vector<Piece> in = {{b, 20001, 1}, {b, 21000, 1500}, {b, 0, 0}, {b, 24000, 4000}};
    const auto check = [&](const char* what) {
      EXPECT_EQ(first_wrong(b->data() + 20001, 1, side ^ 1, 0), 1u) << what;
      EXPECT_EQ(first_wrong(b->data() + 21000, 1500, side ^ 1, 1), 1500u) << what;
      EXPECT_EQ(first_wrong(b->data() + 24000, 1511, side ^ 1, 1501), 1511u) << what;
      EXPECT_EQ(b->data()[24000 + 1511], 0) << what;
      std::memset(b->data() + 20000, 0, 8192);
    };

    ASSERT_EQ(post_recv(link.qp.get(), 1, in), 0);
    link.wire.meet();
    ASSERT_EQ(post(link.qp.get(), {.id = 2, .pieces = out}), 0);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(wait_completion(link.cq.get()).status, IBV_WC_SUCCESS);
    check("send");
    link.wire.meet();

    // Write from four places to one, then read it back from there into four.
    ASSERT_EQ(post(link.qp.get(),
                   {.opcode = IBV_WR_RDMA_WRITE, .id = 3, .pieces = out, .remote = link.at(40000)}),
              0);
    expect_completion(link.cq.get(), 3);
    link.wire.meet();
    EXPECT_EQ(first_wrong(b->data() + 40000, 3012, side ^ 1), 3012u);
    std::memset(b->data() + 40000, 0, 4096);
    paint(b->data() + 40000, 3012, side);
    link.wire.meet();
    ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_READ,
                                   .id = 4,
                                   .pieces = {{b, 20001, 1}, {b, 21000, 1500}, {b, 24000, 1511}},
                                   .remote = link.at(40000)}),
              0);
    expect_completion(link.cq.get(), 4);
    check("read");
    link.wire.meet();
  });
}

TEST_P(VerbsRc, Zero_bytes_complete_like_any_other) {
  run_pair([](Post& p) {
    Link link(p, {.bytes = 4096, .memory = GetParam()});
    for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(post_recv(link.qp.get(), 10 + i, {}), 0);
    link.wire.meet();
    // No memory is touched, so that a key need not be valid.
    const Region nowhere{0, 0};
    ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_SEND, .id = 1}), 0);
    ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_WRITE, .id = 2, .remote = nowhere}), 0);
    ASSERT_EQ(post(link.qp.get(),
                   {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM, .id = 3, .remote = nowhere, .imm = 5}),
              0);
    ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_READ, .id = 4, .remote = nowhere}), 0);
    ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_SEND, .id = 5}), 0);
    uint64_t sent = 1, received = 10;
    for (int i = 0; i < 8; ++i) {
      const ibv_wc wc = wait_completion(link.cq.get());
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS) << wc.wr_id;
      EXPECT_EQ(wc.wr_id, wc.wr_id < 10 ? sent++ : received++);
      if (wc.wr_id >= 10) {
        EXPECT_EQ(wc.byte_len, 0u);
      }
    }
    link.wire.meet();
  });
}

TEST_P(VerbsRc, A_target_that_never_calls_the_library_is_written_and_read) {
  run_pair(
      [](Post& p) {
        Link link(p, {.bytes = 4 << 20, .memory = GetParam()});
        paint(link.buffer->data(), 1 << 20, 5);
        link.wire.meet();
        for (uint64_t i = 0; i < 20; ++i) {
          const auto bytes = static_cast<uint32_t>(i == 0 ? 1 << 20 : 1 + i * 4099);
          ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_WRITE,
                                         .id = 1,
                                         .pieces = link.piece(0, bytes),
                                         .remote = link.at(1 << 20)}),
                    0);
          expect_completion(link.cq.get(), 1);
          ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_READ,
                                         .id = 2,
                                         .pieces = link.piece(2 << 20, bytes),
                                         .remote = link.at(0)}),
                    0);
          expect_completion(link.cq.get(), 2);
          EXPECT_EQ(first_wrong(link.buffer->data() + (2 << 20), bytes, 6), bytes);
        }
        link.wire.meet();
      },
      [](Post& p) {
        Link link(p, {.bytes = 4 << 20, .memory = GetParam()});
        paint(link.buffer->data(), 1 << 20, 6);
        link.wire.meet();
        link.wire.meet();  // blocked in recv() while all of it happens
        EXPECT_EQ(first_wrong(link.buffer->data() + (1 << 20), 1 << 20, 5), 1u << 20);
      });
}

TEST_P(VerbsRc, A_posted_write_lands_though_its_poster_never_polls_again) {
  run_pair(
      [](Post& p) {
        Link link(p, {.bytes = 1 << 20, .memory = GetParam()});
        paint(link.buffer->data(), 1 << 20, 5);
        link.wire.meet();
        ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_WRITE,
                                       .id = 1,
                                       .pieces = link.piece(0, 300000),
                                       .remote = link.at(64)}),
                  0);
        ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_WRITE,
                                       .id = 2,
                                       .pieces = link.piece(0, 8),
                                       .remote = link.at(0),
                                       .flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE}),
                  0);
        link.wire.meet();  // blocked in recv() until the target saw it
        expect_completion(link.cq.get(), 1);
        expect_completion(link.cq.get(), 2);
      },
      [](Post& p) {
        Link link(p, {.bytes = 1 << 20, .memory = GetParam()});
        link.wire.meet();
        // The target watches memory, as a passive target does.  Expect: the word that was written
        // last comes, and with it all that was written before.
        uint64_t expected = 0;
        paint(reinterpret_cast<uint8_t*>(&expected), 8, 5);
        std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(link.buffer->data()));
        wait_until([&] { return word.load(std::memory_order_acquire) == expected; },
                   "a word written into memory");
        EXPECT_EQ(first_wrong(link.buffer->data() + 64, 300000, 5), 300000u);
        link.wire.meet();
      });
}

TEST_P(VerbsRc, Messages_of_many_megabytes_arrive_whole) {
  run_pair([](Post& p) {
    constexpr uint32_t kMost = 64 << 20;
    Link link(p, {.bytes = 2u * kMost, .memory = GetParam()});
    const auto side = static_cast<uint64_t>(p.side);
    paint(link.buffer->data(), kMost, side);
    for (const uint32_t bytes : {1u << 20, (4u << 20) + 1, kMost}) {
      link.wire.meet();
      if (p.side == 0) {
        ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_WRITE,
                                       .id = bytes,
                                       .pieces = link.piece(0, bytes),
                                       .remote = link.at(kMost)}),
                  0);
      } else {
        ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_READ,
                                       .id = bytes,
                                       .pieces = link.piece(kMost, bytes),
                                       .remote = link.at(0)}),
                  0);
      }
      expect_completion(link.cq.get(), bytes);
      link.wire.meet();
      // Side 1 holds what was written or what it read: the same bytes.
      if (p.side == 1) {
        EXPECT_EQ(first_wrong(link.buffer->data() + kMost, bytes, 0), bytes);
      }
    }
    link.wire.meet();
  });
}

}  // namespace
}  // namespace noria::test
