// The shaped link: nothing is seen before its bytes can have come over it, on no side and by no
// means, and sleepers are woken for what comes. The rate and the latency are those of the ctest
// entry: 8 Gbit/s (a byte takes a nanosecond) and 200 us.
//
// Only lower bounds are asserted: they hold on a busy machine too.

#include <atomic>

#include "base/units.hpp"
#include "tests/support/verbs_link.hpp"

namespace noria::test {
namespace {

constexpr Nanoseconds kLatency = 200_us;
constexpr uint32_t kBytes = 1 << 20;
constexpr Nanoseconds kWireTime = kBytes;

NORIA_TEST_BOTH_MEMORIES(SoftShaper);

LinkSpec shaped(bool sleeps = false) {
  return {.bytes = 8 << 20, .memory = Memory::plain, .sleeps = sleeps};
}

TEST_P(SoftShaper, Completions_come_no_faster_than_the_rate) {
  run_pair([](Post& p) {
    LinkSpec spec = shaped();
    spec.memory = GetParam();
    Link link(p, spec);
    paint(link.buffer->data(), kBytes, static_cast<uint64_t>(p.side));
    link.wire.meet();
    if (p.side == 0) {
      const Nanoseconds start = now_ns();
      for (uint64_t i = 0; i < 4; ++i)
        ASSERT_EQ(post(link.qp.get(), link.write(i, kBytes, link.at((i + 1) << 20))), 0);
      for (uint64_t i = 0; i < 4; ++i) {
        expect_completion(link.cq.get(), i);
        EXPECT_GE(now_ns() - start, static_cast<Nanoseconds>(i + 1) * kWireTime + 2 * kLatency);
      }
    }
    link.wire.meet();
    if (p.side == 1) {
      for (uint64_t i = 0; i < 4; ++i)
        EXPECT_EQ(first_wrong(link.buffer->data() + ((i + 1) << 20), kBytes, 0), kBytes);
    }
    link.wire.meet();
  });
}

TEST_P(SoftShaper, A_receiver_sees_a_message_no_earlier_than_it_arrives) {
  run_pair([](Post& p) {
    LinkSpec spec = shaped();
    spec.memory = GetParam();
    Link link(p, spec);
    for (const uint32_t bytes : {8u, 1000u, kBytes}) {
      if (p.side == 1) {
        ASSERT_EQ(post_recv(link.qp.get(), 1, link.piece(4 << 20, kBytes)), 0);
      }
      link.wire.meet();
      Nanoseconds start = now_ns(), seen = 0;
      if (p.side == 0) {
        ASSERT_EQ(post(link.qp.get(), {.id = 2, .pieces = link.piece(0, bytes)}), 0);
        expect_completion(link.cq.get(), 2);
        EXPECT_GE(now_ns() - start, bytes + 2 * kLatency);
      } else {
        expect_completion(link.cq.get(), 1);
        seen = now_ns();
      }
      start = link.wire.exchange(start);
      if (p.side == 1) {
        EXPECT_GE(seen - start, bytes + kLatency);
      }
    }
  });
}

TEST_P(SoftShaper, Memory_that_is_watched_changes_no_earlier_than_the_bytes_arrive) {
  run_pair([](Post& p) {
    LinkSpec spec = shaped();
    spec.memory = GetParam();
    Link link(p, spec);
    paint(link.buffer->data(), kBytes, 3);
    // Which end of a message lands last is the device's business, so both are watched.
    uint64_t first = 0, last = 0;
    std::memcpy(&first, link.buffer->data(), 8);
    std::memcpy(&last, link.buffer->data() + kBytes - 8, 8);
    link.wire.meet();
    Nanoseconds start = now_ns(), seen = 0;
    if (p.side == 0) {
      ASSERT_EQ(post(link.qp.get(), link.write(1, kBytes, link.at(4 << 20))), 0);
    } else {
      uint8_t* in = link.buffer->data() + (4 << 20);
      std::atomic_ref<uint64_t> start_word(*reinterpret_cast<uint64_t*>(in));
      std::atomic_ref<uint64_t> end_word(*reinterpret_cast<uint64_t*>(in + kBytes - 8));
      wait_until(
          [&] {
            return start_word.load(std::memory_order_acquire) == first &&
                   end_word.load(std::memory_order_acquire) == last;
          },
          "both ends of the message");
      seen = now_ns();
    }
    start = link.wire.exchange(start);
    if (p.side == 1) {
      EXPECT_GE(seen - start, kWireTime + kLatency);
    } else {
      expect_completion(link.cq.get(), 1);
    }
    link.wire.meet();
  });
}

TEST_P(SoftShaper, A_read_travels_both_ways) {
  run_pair([](Post& p) {
    LinkSpec spec = shaped();
    spec.memory = GetParam();
    Link link(p, spec);
    paint(link.buffer->data(), kBytes, static_cast<uint64_t>(p.side));
    link.wire.meet();
    if (p.side == 0) {
      const Nanoseconds start = now_ns();
      ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_READ,
                                     .id = 1,
                                     .pieces = link.piece(4 << 20, kBytes),
                                     .remote = link.at(0)}),
                0);
      expect_completion(link.cq.get(), 1);
      EXPECT_GE(now_ns() - start, kWireTime + 2 * kLatency);
      EXPECT_EQ(first_wrong(link.buffer->data() + (4 << 20), kBytes, 1), kBytes);
    }
    link.wire.meet();
  });
}

TEST(SoftPort, Queues_share_their_port) {
  run_pair([](Post& p) {
    Hca hca;
    const auto cq = hca.make_cq();
    const auto buffer = hca.make_buffer(4 << 20);
    const auto a = hca.make_qp(cq.get()), b = hca.make_qp(cq.get());
    hca.connect(a.get(), p.peer);
    hca.connect(b.get(), p.peer);
    const auto remote = p.peer.exchange(Region{buffer->address(), buffer->rkey()});
    // Side 0 writes over two queues, and side 1 reads from side 0: three MiB leave its port.
    const Nanoseconds start = now_ns();
    p.peer.meet();
    const SendSpec request{.opcode = p.side == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
                           .id = 1,
                           .pieces = {{buffer.get(), 0, kBytes}},
                           .remote = {remote.address + (2 << 20), remote.rkey}};
    ASSERT_EQ(post(a.get(), request), 0);
    if (p.side == 0) {
      ASSERT_EQ(post(b.get(), request), 0);
      expect_completion(cq.get(), 1);
    }
    expect_completion(cq.get(), 1);
    p.peer.meet();
    EXPECT_GE(now_ns() - start, 3 * kWireTime + kLatency);
  });
}

TEST(SoftPort, Sleepers_are_woken_on_both_sides) {
  run_pair([](Post& p) {
    Link link(p, shaped(true));
    ASSERT_EQ(post_recv(link.qp.get(), 1, {}), 0);
    ASSERT_EQ(ibv_req_notify_cq(link.cq.get(), 0), 0);
    link.wire.meet();
    Nanoseconds start = now_ns(), seen = 0;
    if (p.side == 0) {
      ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                                     .id = 2,
                                     .pieces = link.piece(0, kBytes),
                                     .remote = link.at(4 << 20),
                                     .imm = 1}),
                0);
      EXPECT_FALSE(link.has_event(0)) << "the sender was told before the bytes can have left";
      ASSERT_NO_FATAL_FAILURE(link.take_event());
      EXPECT_GE(now_ns() - start, kWireTime + 2 * kLatency);
      expect_completion(link.cq.get(), 2);
    } else {
      ASSERT_NO_FATAL_FAILURE(link.take_event());
      seen = now_ns();
      expect_completion(link.cq.get(), 1);
    }
    start = link.wire.exchange(start);
    if (p.side == 1) {
      EXPECT_GE(seen - start, kWireTime + kLatency);
    }
  });
}

TEST(SoftPort, Both_sides_sleep_through_a_long_exchange) {
  run_pair([](Post& p) {
    constexpr uint64_t kRounds = 20;
    Link link(p, shaped(true));
    const auto side = static_cast<uint64_t>(p.side);
    for (uint64_t i = 0; i < kRounds; ++i) ASSERT_EQ(post_recv(link.qp.get(), i, {}), 0);
    link.wire.meet();
    uint64_t sent = 0, received = 0;
    const auto send = [&](uint64_t round) {
      paint(link.buffer->data(), 300000, 2 * round + side);
      return post(link.qp.get(), {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                                  .id = round,
                                  .pieces = link.piece(0, 300000),
                                  .remote = link.at(4 << 20),
                                  .imm = 1});
    };
    ASSERT_EQ(send(0), 0);
    while (sent < kRounds || received < kRounds) {
      const ibv_wc wc = link.sleep_for_completion();
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      if (wc.opcode != IBV_WC_RECV_RDMA_WITH_IMM) {
        ASSERT_EQ(wc.wr_id, sent++);
        continue;
      }
      ASSERT_EQ(wc.wr_id, received);
      EXPECT_EQ(first_wrong(link.buffer->data() + (4 << 20), 300000, 2 * received + (side ^ 1)),
                300000u);
      ++received;
      // Each side sends its next once it has the other's, and its own is through.
      while (sent < received) {
        const ibv_wc mine = link.sleep_for_completion();
        ASSERT_EQ(mine.status, IBV_WC_SUCCESS);
        ASSERT_EQ(mine.wr_id, sent++);
      }
      link.wire.meet();
      if (received < kRounds) {
        ASSERT_EQ(send(received), 0);
      }
    }
    link.wire.meet();
  });
}

}  // namespace
}  // namespace noria::test
