// The queues of a reliable connection: order, depth, signalling, many of them, and what is left of
// them after a reset.
//
// The ctest entry chooses copy path and placement by environment; every test runs with memory of
// the process's own and with memory that peers map.

#include "tests/support/verbs_link.hpp"

namespace noria::test {
namespace {

NORIA_TEST_BOTH_MEMORIES(VerbsQueue);

TEST_P(VerbsQueue, Only_signalled_requests_complete_and_they_free_the_queue) {
  run_pair([](Post& p) {
    Link link(p, {.bytes = 65536, .memory = GetParam(), .qp = {.send_depth = 16}});
    for (uint64_t i = 0; i < 400; ++i) {
      // Every eighth asks for a completion.  Expect: that one alone, and room for the next eight.
      const bool signalled = i % 8 == 7;
      ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_WRITE,
                                     .id = i,
                                     .pieces = link.piece(0, 100),
                                     .remote = link.at(4096),
                                     .flags = signalled ? unsigned{IBV_SEND_SIGNALED} : 0u}),
                0)
          << i;
      if (signalled) expect_completion(link.cq.get(), i);
    }
    EXPECT_TRUE(is_empty(link.cq.get()));
    link.wire.meet();
  });
}

TEST_P(VerbsQueue, A_queue_that_signals_all_completes_each) {
  run_pair([](Post& p) {
    Link link(p, {.bytes = 65536, .memory = GetParam(), .qp = {.signal_all = true}});
    for (uint64_t i = 0; i < 50; ++i)
      ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_WRITE,
                                     .id = i,
                                     .pieces = link.piece(0, 100),
                                     .remote = link.at(4096),
                                     .flags = 0}),
                0);
    for (uint64_t i = 0; i < 50; ++i) expect_completion(link.cq.get(), i);
    link.wire.meet();
  });
}

TEST_P(VerbsQueue, A_sender_waits_for_the_receiver_to_become_ready) {
  run_pair(
      [](Post& p) {
        Link link(p, {.bytes = 65536, .memory = GetParam()});
        paint(link.buffer->data(), 65536, 1);
        // Nothing is posted over there yet: small, large and an immediate.
        ASSERT_EQ(post(link.qp.get(), {.id = 1, .pieces = link.piece(0, 32)}), 0);
        ASSERT_EQ(post(link.qp.get(), {.id = 2, .pieces = link.piece(32, 40000)}), 0);
        ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                                       .id = 3,
                                       .pieces = link.piece(0, 64),
                                       .remote = link.at(60000),
                                       .imm = 9}),
                  0);
        for (int i = 0; i < 1000; ++i) EXPECT_TRUE(is_empty(link.cq.get()));
        link.wire.meet();
        for (uint64_t i = 1; i <= 3; ++i) expect_completion(link.cq.get(), i);
        link.wire.meet();
      },
      [](Post& p) {
        Link link(p, {.bytes = 65536, .memory = GetParam()});
        link.wire.meet();
        for (int i = 0; i < 1000; ++i) EXPECT_TRUE(is_empty(link.cq.get()));
        for (uint64_t i = 1; i <= 3; ++i) {
          ASSERT_EQ(post_recv(link.qp.get(), i, link.piece(0, 40000)), 0);
          const ibv_wc wc = expect_completion(link.cq.get(), i);
          if (i < 3) {
            EXPECT_EQ(first_wrong(link.buffer->data(), wc.byte_len, 1, i == 1 ? 0 : 32),
                      wc.byte_len);
          }
        }
        EXPECT_EQ(first_wrong(link.buffer->data() + 60000, 64, 1), 64u);
        link.wire.meet();
      });
}

TEST_P(VerbsQueue, Requests_of_a_queue_take_effect_and_complete_in_order) {
  run_pair([](Post& p) {
    Link link(p, {.bytes = 1 << 20, .memory = GetParam()});
    const auto side = static_cast<uint64_t>(p.side);
    constexpr uint64_t kRounds = 200;
    uint8_t* const in = link.buffer->data() + (512 << 10);
    const auto round_bytes = [](uint64_t round) {
      return static_cast<uint32_t>(1 + round * 7919 % 20000);
    };
    ASSERT_EQ(post_recv(link.qp.get(), 0, {}), 0);
    link.wire.meet();
    for (uint64_t round = 0; round < kRounds; ++round) {
      // A write, then a send that announces it, then the next round's receive.
      const uint32_t bytes = round_bytes(round);
      paint(link.buffer->data(), bytes, 2 * round + side);
      ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_WRITE,
                                     .id = 1,
                                     .pieces = link.piece(0, bytes),
                                     .remote = link.at(512 << 10),
                                     .flags = 0}),
                0);
      ASSERT_EQ(post(link.qp.get(), {.id = 1000 + round}), 0);
      bool sent = false, received = false;
      while (!sent || !received) {
        const ibv_wc wc = wait_completion(link.cq.get());
        ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
        (wc.opcode == IBV_WC_RECV ? received : sent) = true;
      }
      ASSERT_EQ(first_wrong(in, bytes, 2 * round + (side ^ 1)), bytes) << "round " << round;
      ASSERT_EQ(post_recv(link.qp.get(), round + 1, {}), 0);
      link.wire.meet();
    }
  });
}

TEST_P(VerbsQueue, A_read_sees_the_writes_posted_before_it) {
  run_pair([](Post& p) {
    Link link(p, {.bytes = 1 << 20, .memory = GetParam()});
    const auto side = static_cast<uint64_t>(p.side);
    for (uint64_t round = 0; round < 30; ++round) {
      const auto bytes = static_cast<uint32_t>(1 + round * 3571 % 100000);
      paint(link.buffer->data(), bytes, 2 * round + side);
      ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_WRITE,
                                     .id = 1,
                                     .pieces = link.piece(0, bytes),
                                     .remote = link.at(256 << 10),
                                     .flags = 0}),
                0);
      ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_READ,
                                     .id = 2,
                                     .pieces = link.piece(512 << 10, bytes),
                                     .remote = link.at(256 << 10)}),
                0);
      expect_completion(link.cq.get(), 2);
      EXPECT_EQ(first_wrong(link.buffer->data() + (512 << 10), bytes, 2 * round + side), bytes);
    }
    link.wire.meet();
  });
}

TEST_P(VerbsQueue, Many_queues_share_a_completion_queue) {
  run_pair([](Post& p) {
    constexpr size_t kQueues = 8;
    Hca hca;
    const auto cq = hca.make_cq();
    const auto buffer = hca.make_buffer(1 << 20, GetParam());
    std::vector<Owned<ibv_qp>> qps;
    for (size_t i = 0; i < kQueues; ++i) {
      qps.push_back(hca.make_qp(cq.get()));
      hca.connect(qps.back().get(), p.peer);
    }
    const auto remote = p.peer.exchange(Region{buffer->address(), buffer->rkey()});
    const auto side = static_cast<uint64_t>(p.side);
    paint(buffer->data(), 512 << 10, side);
    for (size_t i = 0; i < kQueues; ++i)
      for (uint64_t k = 0; k < 10; ++k) ASSERT_EQ(post_recv(qps[i].get(), 100 + k, {}), 0);
    p.peer.meet();
    for (uint64_t k = 0; k < 10; ++k)
      for (size_t i = 0; i < kQueues; ++i)
        ASSERT_EQ(
            post(qps[i].get(),
                 {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                  .id = k,
                  .pieces = {{buffer.get(), i * 50000 + k * 5000, 5000}},
                  .remote = {remote.address + (512 << 10) + i * 50000 + k * 5000, remote.rkey},
                  .imm = static_cast<uint32_t>(i)}),
            0);
    // Expect: each queue's completions in order, under its own number.
    std::vector<uint64_t> sent(kQueues), received(kQueues);
    for (size_t n = 0; n < kQueues * 20; ++n) {
      const ibv_wc wc = wait_completion(cq.get());
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      size_t i = 0;
      while (i < kQueues && qps[i]->qp_num != wc.qp_num) ++i;
      ASSERT_LT(i, kQueues);
      if (wc.opcode == IBV_WC_RDMA_WRITE) {
        EXPECT_EQ(wc.wr_id, sent[i]++);
      } else {
        EXPECT_EQ(wc.wr_id, 100 + received[i]++);
        EXPECT_EQ(be32toh(wc.imm_data), i);
      }
    }
    EXPECT_EQ(first_wrong(buffer->data() + (512 << 10), 400000, side ^ 1), 400000u);
    p.peer.meet();
  });
}

TEST_P(VerbsQueue, Both_directions_stream_at_once_with_full_queues) {
  run_pair([](Post& p) {
    constexpr uint64_t kMessages = 600;
    constexpr uint32_t kBytes = 30000;
    constexpr uint64_t kWindow = 16;
    Link link(p, {.bytes = 2 * kWindow * kBytes,
                  .memory = GetParam(),
                  .qp = {.send_depth = kWindow, .recv_depth = kWindow}});
    const auto side = static_cast<uint64_t>(p.side);
    for (uint64_t i = 0; i < kWindow; ++i)
      ASSERT_EQ(post_recv(link.qp.get(), i, link.piece((kWindow + i) * kBytes, kBytes)), 0);
    link.wire.meet();
    uint64_t posted = 0, sent = 0, received = 0;
    while (sent < kMessages || received < kMessages) {
      for (; posted < kMessages && posted - sent < kWindow; ++posted) {
        const uint64_t slot = posted % kWindow * kBytes;
        paint(link.buffer->data() + slot, kBytes, 2 * posted + side);
        ASSERT_EQ(post(link.qp.get(), {.id = posted, .pieces = link.piece(slot, kBytes)}), 0);
      }
      const ibv_wc wc = wait_completion(link.cq.get());
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      if (wc.opcode == IBV_WC_SEND) {
        ASSERT_EQ(wc.wr_id, sent++);
        continue;
      }
      ASSERT_EQ(wc.wr_id, received);
      const uint64_t slot = (kWindow + received % kWindow) * kBytes;
      ASSERT_EQ(first_wrong(link.buffer->data() + slot, kBytes, 2 * received + (side ^ 1)), kBytes);
      ++received;
      ASSERT_EQ(post_recv(link.qp.get(), received + kWindow - 1, link.piece(slot, kBytes)), 0);
    }
    link.wire.meet();
  });
}

TEST_P(VerbsQueue, A_queue_pair_is_reset_and_connected_again) {
  run_pair([](Post& p) {
    Link link(p, {.bytes = 65536, .memory = GetParam()});
    const auto side = static_cast<uint64_t>(p.side);
    for (uint64_t life = 0; life < 5; ++life) {
      // Receives of an earlier life are gone: the first one posted now is the first one filled.
      ASSERT_EQ(post_recv(link.qp.get(), 10 * life + 1, link.piece(32768, 4096)), 0);
      ASSERT_EQ(post_recv(link.qp.get(), 10 * life + 2, link.piece(40960, 4096)), 0);
      link.wire.meet();
      paint(link.buffer->data(), 4096, 2 * life + side);
      ASSERT_EQ(post(link.qp.get(), {.id = 10 * life + 3, .pieces = link.piece(0, 4096)}), 0);
      for (int i = 0; i < 2; ++i) {
        const ibv_wc wc = wait_completion(link.cq.get());
        EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
        EXPECT_EQ(wc.wr_id, 10 * life + (wc.opcode == IBV_WC_RECV ? 1 : 3));
      }
      EXPECT_EQ(first_wrong(link.buffer->data() + 32768, 4096, 2 * life + (side ^ 1)), 4096u);
      link.wire.meet();
      ASSERT_EQ(to_state(link.qp.get(), IBV_QPS_RESET), 0);
      EXPECT_TRUE(is_empty(link.cq.get()));
      link.wire.meet();
      link.hca.connect(link.qp.get(), link.wire);
    }
  });
}

TEST_P(VerbsQueue, A_connection_to_oneself_works) {
  Crew crew({[](Post&) {
    Hca hca;
    const auto cq = hca.make_cq();
    const auto a = hca.make_qp(cq.get()), b = hca.make_qp(cq.get());
    const auto buffer = hca.make_buffer(65536, GetParam());
    hca.connect(a.get(), hca.address_of(b.get()));
    hca.connect(b.get(), hca.address_of(a.get()));
    paint(buffer->data(), 20000, 3);
    ASSERT_EQ(post_recv(b.get(), 1, {{buffer.get(), 32768, 20000}}), 0);
    ASSERT_EQ(post(a.get(), {.id = 2, .pieces = {{buffer.get(), 0, 20000}}}), 0);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(wait_completion(cq.get()).status, IBV_WC_SUCCESS);
    EXPECT_EQ(first_wrong(buffer->data() + 32768, 20000, 3), 20000u);
  }});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
}

}  // namespace
}  // namespace noria::test
