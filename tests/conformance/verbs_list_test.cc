// Post lists: many requests in one call behave as if they were posted one by one. Order, errors in
// the middle, immediates, and what they mix.
//
// The ctest entry chooses copy path and placement by environment; every test runs with memory of
// the process's own and with memory that peers map.

#include <random>

#include "tests/support/verbs_link.hpp"

namespace noria::test {
namespace {

NORIA_TEST_BOTH_MEMORIES(VerbsList);

constexpr uint32_t kHalf = 512 << 10;  // of a buffer: written to from here on
constexpr uint32_t kPart = 1000;

SendSpec part(const Link& link, uint64_t id, uint64_t offset, uint32_t bytes) {
  return {.opcode = IBV_WR_RDMA_WRITE,
          .id = id,
          .pieces = link.piece(offset, bytes),
          .remote = link.at(kHalf + offset)};
}

TEST_P(VerbsList, Every_request_lands_in_its_place) {
  run_pair([](Post& p) {
    Link link(p, {.bytes = 2 * kHalf, .memory = GetParam()});
    const auto side = static_cast<uint64_t>(p.side);
    std::mt19937 random(static_cast<uint32_t>(7 + p.side));
    uint64_t id = 0;
    for (uint64_t round = 0; round < 40; ++round) {
      // Pieces of the buffer in order, of any length and number; none, inline and scattered too.
      paint(link.buffer->data(), kHalf, 2 * round + side);
      std::vector<SendSpec> list;
      uint64_t at = 0;
      const size_t count = 2 + random() % 62;
      const uint32_t longest = round % 4 == 0 ? 60 : kHalf / 64;
      while (list.size() < count) {
        const auto bytes = static_cast<uint32_t>(random() % longest);
        SendSpec spec = part(link, id++, at, bytes);
        if (bytes <= 64 && random() % 2 == 0) spec.flags |= IBV_SEND_INLINE;
        if (bytes > 8 && random() % 3 == 0)
          spec.pieces = {{link.buffer.get(), at, 5},
                         {link.buffer.get(), at + 5, 0},
                         {link.buffer.get(), at + 5, bytes - 5}};
        list.push_back(spec);
        at += bytes;
      }
      link.wire.meet();
      ASSERT_EQ(post_list(link.qp.get(), list), 0);
      for (const SendSpec& spec : list) expect_completion(link.cq.get(), spec.id);
      // Expect: the other's bytes, as many as it says, and nothing behind them.
      const uint64_t there = link.wire.exchange(at);
      uint8_t* const in = link.buffer->data() + kHalf;
      ASSERT_EQ(first_wrong(in, there, 2 * round + (side ^ 1)), there) << "round " << round;
      ASSERT_EQ(in[there], 0);
      std::memset(in, 0, there);
    }
    link.wire.meet();
  });
}

TEST_P(VerbsList, A_request_is_seen_over_what_an_earlier_one_wrote_there) {
  run_pair([](Post& p) {
    Link link(p, {.bytes = 2 * kHalf, .memory = GetParam()});
    const auto side = static_cast<uint64_t>(p.side);
    for (uint64_t round = 0; round < 50; ++round) {
      // Each writes all of the same place but for its last bytes.
      paint(link.buffer->data(), 4096, 2 * round + side);
      std::vector<SendSpec> list;
      for (uint32_t i = 0; i < 16; ++i)
        list.push_back({.opcode = IBV_WR_RDMA_WRITE,
                        .id = i,
                        .pieces = link.piece(i, 4096 - 16),
                        .remote = link.at(kHalf),
                        .flags = i == 15 ? unsigned{IBV_SEND_SIGNALED} : 0u});
      ASSERT_EQ(post_list(link.qp.get(), list), 0);
      expect_completion(link.cq.get(), 15);
      link.wire.meet();
      // Expect: the last one's.
      ASSERT_EQ(first_wrong(link.buffer->data() + kHalf, 4096 - 16, 2 * round + (side ^ 1), 15),
                4096u - 16);
      link.wire.meet();
    }
  });
}

TEST_P(VerbsList, Reads_and_writes_of_a_list_see_what_stands_before_them) {
  run_pair([](Post& p) {
    Link link(p, {.bytes = 2 * kHalf, .memory = GetParam()});
    const auto side = static_cast<uint64_t>(p.side);
    for (uint64_t round = 0; round < 20; ++round) {
      // Four writes, four reads of the same places, and the same again from what was read.
      paint(link.buffer->data(), 4 * kPart, 2 * round + side);
      std::vector<SendSpec> list;
      for (uint64_t i = 0; i < 4; ++i) list.push_back(part(link, i, i * kPart, kPart));
      for (uint64_t i = 0; i < 4; ++i)
        list.push_back({.opcode = IBV_WR_RDMA_READ,
                        .id = 4 + i,
                        .pieces = link.piece((10 + i) * kPart, kPart),
                        .remote = link.at(kHalf + i * kPart)});
      for (uint64_t i = 0; i < 4; ++i) list.push_back(part(link, 8 + i, (10 + i) * kPart, kPart));
      list[8].flags |= IBV_SEND_FENCE;
      ASSERT_EQ(post_list(link.qp.get(), list), 0);
      for (uint64_t i = 0; i < list.size(); ++i) expect_completion(link.cq.get(), i);
      link.wire.meet();
      for (const uint64_t at : {uint64_t{0}, uint64_t{10 * kPart}})
        ASSERT_EQ(first_wrong(link.buffer->data() + kHalf + at, 4 * kPart, 2 * round + (side ^ 1)),
                  4 * kPart)
            << "at " << at << " in round " << round;
      link.wire.meet();
    }
  });
}

TEST_P(VerbsList, Immediates_of_a_list_use_up_receives_in_order_and_wait_for_more) {
  const auto list_of = [](const Link& link) {
    std::vector<SendSpec> list;
    for (uint32_t i = 0; i < 8; ++i) {
      list.push_back(part(link, i, i * kPart, kPart));
      if (i % 2 == 0) continue;
      list.back().opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
      list.back().imm = 100 + i;
    }
    return list;
  };
  run_pair(
      [&](Post& p) {
        Link link(p, {.bytes = 2 * kHalf, .memory = GetParam()});
        paint(link.buffer->data(), 8 * kPart, 3);
        link.wire.meet();  // two receives are posted there
        ASSERT_EQ(post_list(link.qp.get(), list_of(link)), 0);
        for (uint64_t i = 0; i < 5; ++i) expect_completion(link.cq.get(), i);
        for (int i = 0; i < 1000; ++i) EXPECT_TRUE(is_empty(link.cq.get()));
        link.wire.meet();
        for (uint64_t i = 5; i < 8; ++i) expect_completion(link.cq.get(), i);
        link.wire.meet();
      },
      [](Post& p) {
        Link link(p, {.bytes = 2 * kHalf, .memory = GetParam()});
        const auto expect_message = [&](uint32_t i) {
          const ibv_wc wc = expect_completion(link.cq.get(), i);
          EXPECT_EQ(be32toh(wc.imm_data), 100 + i);
          EXPECT_EQ(wc.byte_len, kPart);
          // Expect: all up to here is in place.
          const size_t bytes = (i + 1) * kPart;
          EXPECT_EQ(first_wrong(link.buffer->data() + kHalf, bytes, 3), bytes);
        };
        for (const uint64_t i : {1u, 3u}) ASSERT_EQ(post_recv(link.qp.get(), i, {}), 0);
        link.wire.meet();
        for (const uint32_t i : {1u, 3u}) expect_message(i);
        link.wire.meet();
        for (const uint64_t i : {5u, 7u}) ASSERT_EQ(post_recv(link.qp.get(), i, {}), 0);
        for (const uint32_t i : {5u, 7u}) expect_message(i);
        link.wire.meet();
      });
}

// Sixteen writes of side 0, whose seventh `spoil` makes fail with `status`.
void expect_failure_of_the_seventh(Memory memory, ibv_wc_status status,
                                   void (*spoil)(const Link&, SendSpec*)) {
  run_pair([&](Post& p) {
    Link link(p, {.bytes = 2 * kHalf, .memory = memory});
    paint(link.buffer->data(), 16 * kPart, 5);
    link.wire.meet();
    if (p.side == 0) {
      std::vector<SendSpec> list;
      for (uint64_t i = 0; i < 16; ++i) list.push_back(part(link, i, i * kPart, kPart));
      spoil(link, &list[6]);
      ASSERT_EQ(post_list(link.qp.get(), list), 0);
      // Expect: those before are through, the ones behind are flushed.
      for (uint64_t i = 0; i < 16; ++i)
        expect_completion(link.cq.get(), i,
                          i < 6    ? IBV_WC_SUCCESS
                          : i == 6 ? status
                                   : IBV_WC_WR_FLUSH_ERR);
      EXPECT_EQ(link.state(), IBV_QPS_ERR);
    }
    link.wire.meet();
    if (p.side == 1) {
      const uint8_t* const in = link.buffer->data() + kHalf;
      EXPECT_EQ(first_wrong(in, 6 * kPart, 5), 6 * kPart);
      for (size_t i = 6 * kPart; i < 16 * kPart; ++i) ASSERT_EQ(in[i], 0) << "at " << i;
    }
    link.wire.meet();
  });
}

TEST_P(VerbsList, A_wrong_remote_key_ends_the_list_where_it_stands) {
  expect_failure_of_the_seventh(GetParam(), IBV_WC_REM_ACCESS_ERR,
                                [](const Link&, SendSpec* spec) { spec->remote.rkey ^= 0x40; });
}

TEST_P(VerbsList, A_wrong_remote_bound_ends_the_list_where_it_stands) {
  expect_failure_of_the_seventh(
      GetParam(), IBV_WC_REM_ACCESS_ERR,
      [](const Link& link, SendSpec* spec) { spec->remote = link.at(2 * kHalf - kPart + 1); });
}

TEST_P(VerbsList, A_wrong_local_bound_ends_the_list_where_it_stands) {
  expect_failure_of_the_seventh(GetParam(), IBV_WC_LOC_PROT_ERR,
                                [](const Link& link, SendSpec* spec) {
                                  spec->pieces = link.piece(2 * kHalf - kPart + 1, kPart);
                                });
}

TEST(VerbsListWake, A_solicited_message_in_the_middle_of_a_list_wakes_its_receiver) {
  run_pair([](Post& p) {
    Link link(p, {.bytes = 2 * kHalf, .sleeps = true});
    for (uint64_t i = 0; i < 3; ++i) ASSERT_EQ(post_recv(link.qp.get(), i, {}), 0);
    if (p.side == 1) {
      ASSERT_EQ(ibv_req_notify_cq(link.cq.get(), 1), 0);
    }
    link.wire.meet();
    if (p.side == 0) {
      std::vector<SendSpec> list;
      for (uint32_t i = 0; i < 3; ++i) {
        list.push_back(part(link, i, 0, 100));
        list.back().opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
      }
      list[1].flags |= IBV_SEND_SOLICITED;
      ASSERT_EQ(post_list(link.qp.get(), list), 0);
      for (uint64_t i = 0; i < 3; ++i) expect_completion(link.cq.get(), i);
    } else {
      // Expect: an event, for all of them.
      link.take_event();
      for (uint64_t i = 0; i < 3; ++i) expect_completion(link.cq.get(), i);
    }
    link.wire.meet();
  });
}

}  // namespace
}  // namespace noria::test
