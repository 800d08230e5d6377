// Shared receive queues: whichever queue pair has a message takes the next receive.

#include <set>

#include "tests/support/verbs_link.hpp"

namespace noria::test {
namespace {

constexpr size_t kQueues = 4;
constexpr uint32_t kSlot = 1024;  // bytes for each receive and for each message

// Several queue pairs to the other side; side 1 receives on all of them from one queue.
struct Share {
  Share(Post& p, uint32_t depth, const ConnectSpec& spec = {})
      : cq(hca.make_cq()),
        srq(p.side == 1 ? hca.make_srq(depth) : nullptr),
        buffer(hca.make_buffer(64 * kSlot)),
        wire(p.peer) {
    for (size_t i = 0; i < kQueues; ++i) {
      qps.push_back(hca.make_qp(cq.get(), {.srq = srq.get()}));
      hca.connect(qps.back().get(), wire, spec);
    }
  }
  int receive(uint64_t id) const {
    return post_recv(srq.get(), id, {{buffer.get(), id * kSlot, kSlot}});
  }
  // Message `id` on queue pair `q`.
  int send(size_t q, uint64_t id, uint32_t bytes = kSlot) const {
    paint(buffer->data() + id * kSlot, bytes, id);
    return post(qps[q].get(), {.opcode = IBV_WR_SEND_WITH_IMM,
                               .id = id,
                               .pieces = {{buffer.get(), id * kSlot, bytes}},
                               .imm = static_cast<uint32_t>(id)});
  }

  Hca hca;
  Owned<ibv_cq> cq;
  Owned<ibv_srq> srq;
  std::vector<Owned<ibv_qp>> qps;
  std::unique_ptr<Buffer> buffer;
  Wire& wire;
};

TEST(VerbsSrq, Every_receive_is_there_for_every_queue_pair) {
  run_pair([](Post& p) {
    Share s(p, 16);
    constexpr uint64_t kMessages = 16;
    // All on one queue pair; then in turn; small ones and ones that do not ride along.
    for (const bool in_turn : {false, true}) {
      for (uint64_t i = 0; p.side == 1 && i < kMessages; ++i) ASSERT_EQ(s.receive(i), 0);
      s.wire.meet();
      const auto queue_of = [&](uint64_t id) { return in_turn ? id % kQueues : 2; };
      const auto bytes_of = [](uint64_t id) { return id % 2 == 0 ? 40 : kSlot; };
      std::set<uint64_t> receives, messages;
      for (uint64_t i = 0; i < kMessages; ++i) {
        if (p.side == 0) {
          ASSERT_EQ(s.send(queue_of(i), i, bytes_of(i)), 0);
          expect_completion(s.cq.get(), i);
          continue;
        }
        const ibv_wc wc = wait_completion(s.cq.get());
        ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
        const uint64_t id = be32toh(wc.imm_data);
        EXPECT_EQ(wc.qp_num, s.qps[queue_of(id)]->qp_num);
        EXPECT_EQ(wc.byte_len, bytes_of(id));
        EXPECT_EQ(first_wrong(s.buffer->data() + wc.wr_id * kSlot, bytes_of(id), id), bytes_of(id));
        EXPECT_TRUE(receives.insert(wc.wr_id).second) << "twice: receive " << wc.wr_id;
        EXPECT_TRUE(messages.insert(id).second) << "twice: message " << id;
      }
      s.wire.meet();
    }
  });
}

TEST(VerbsSrq, Many_messages_come_through_a_short_queue) {
  run_pair([](Post& p) {
    Share s(p, 4);
    constexpr uint64_t kMessages = 400;
    if (p.side == 0) {
      for (uint64_t i = 0; i < kMessages; ++i) {
        ASSERT_EQ(post(s.qps[i % kQueues].get(),
                       {.id = i, .pieces = {{s.buffer.get(), 0, 64}}, .flags = IBV_SEND_SIGNALED}),
                  0);
        if (i >= 32) {
          EXPECT_EQ(wait_completion(s.cq.get()).status, IBV_WC_SUCCESS);
        }
      }
      for (int i = 0; i < 32; ++i) EXPECT_EQ(wait_completion(s.cq.get()).status, IBV_WC_SUCCESS);
    } else {
      for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(s.receive(i), 0);
      for (uint64_t i = 0; i < kMessages; ++i) {
        const ibv_wc wc = wait_completion(s.cq.get());
        ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
        ASSERT_EQ(s.receive(wc.wr_id), 0);
      }
    }
    s.wire.meet();
  });
}

TEST(VerbsSrq,
     A_sender_without_patience_is_served_from_what_is_there_and_refused_from_what_is_not) {
  run_pair([](Post& p) {
    Share s(p, 4, {.rnr_retry = 0});
    if (p.side == 1) {
      ASSERT_EQ(s.receive(1), 0);
    }
    s.wire.meet();
    if (p.side == 0) {
      ASSERT_EQ(s.send(0, 1), 0);
      expect_completion(s.cq.get(), 1);
      ASSERT_EQ(s.send(1, 2), 0);
      expect_completion(s.cq.get(), 2, IBV_WC_RNR_RETRY_EXC_ERR);
    }
    s.wire.meet();
  });
}

TEST(VerbsSrq, A_sender_with_patience_waits_for_a_receive) {
  run_pair([](Post& p) {
    Share s(p, 4);
    if (p.side == 0) {
      ASSERT_EQ(s.send(3, 5), 0);
    }
    s.wire.meet();
    if (p.side == 1) {
      for (int i = 0; i < 1000; ++i) EXPECT_TRUE(is_empty(s.cq.get()));
      ASSERT_EQ(s.receive(5), 0);
    }
    expect_completion(s.cq.get(), 5);
    s.wire.meet();
  });
}

TEST(VerbsSrq, Running_low_is_told_once_for_each_time_it_is_asked) {
  run_pair([](Post& p) {
    Share s(p, 8);
    for (uint64_t i = 0; p.side == 1 && i < 8; ++i) ASSERT_EQ(s.receive(i), 0);
    if (p.side == 1) {
      ibv_srq_attr attr{.srq_limit = 9};
      EXPECT_EQ(verbs().modify_srq(s.srq.get(), &attr, IBV_SRQ_LIMIT), EINVAL);
      attr.srq_limit = 6;
      EXPECT_EQ(verbs().modify_srq(s.srq.get(), &attr, IBV_SRQ_LIMIT), 0);
      EXPECT_EQ(verbs().query_srq(s.srq.get(), &attr), 0);
      EXPECT_EQ(attr.srq_limit, 6u);
      EXPECT_GE(attr.max_wr, 8u);
    }
    s.wire.meet();
    for (uint64_t i = 0; i < 3; ++i) {
      if (p.side == 0) {
        ASSERT_EQ(s.send(i, i), 0);
      }
      EXPECT_EQ(wait_completion(s.cq.get()).status, IBV_WC_SUCCESS);
    }
    if (p.side == 1) {
      const ibv_async_event event = next_event(s.hca);
      EXPECT_EQ(event.event_type, IBV_EVENT_SRQ_LIMIT_REACHED);
      EXPECT_EQ(event.element.srq, s.srq.get());
      ibv_srq_attr attr{};
      EXPECT_EQ(verbs().query_srq(s.srq.get(), &attr), 0);
      EXPECT_EQ(attr.srq_limit, 0u);
    }
    s.wire.meet();
  });
}

TEST(VerbsSrq, A_queue_pair_in_error_leaves_the_receives_to_the_others) {
  run_pair([](Post& p) {
    Share s(p, 4);
    for (uint64_t i = 0; p.side == 1 && i < 4; ++i) ASSERT_EQ(s.receive(i), 0);
    s.wire.meet();
    if (p.side == 1) {
      ASSERT_EQ(to_state(s.qps[0].get(), IBV_QPS_ERR), 0);
      const ibv_async_event event = next_event(s.hca);
      EXPECT_EQ(event.event_type, IBV_EVENT_QP_LAST_WQE_REACHED);
      EXPECT_EQ(event.element.qp, s.qps[0].get());
      EXPECT_TRUE(is_empty(s.cq.get()));
    }
    s.wire.meet();
    for (uint64_t i = 0; i < 4; ++i) {
      if (p.side == 0) {
        ASSERT_EQ(s.send(1 + i % 3, i), 0);
      }
      EXPECT_EQ(wait_completion(s.cq.get()).status, IBV_WC_SUCCESS);
    }
    s.wire.meet();
  });
}

TEST(VerbsSrq, Is_as_deep_as_was_asked_and_is_not_destroyed_while_it_is_used) {
  run_pair([](Post& p) {
    Share s(p, 3);
    if (p.side == 1) {
      for (uint64_t i = 0; i < 3; ++i) EXPECT_EQ(s.receive(i), 0);
      EXPECT_EQ(s.receive(3), ENOMEM);
      EXPECT_EQ(post_recv(s.qps[0].get(), 1, {}), EINVAL);
      EXPECT_EQ(verbs().destroy_srq(s.srq.get()), EBUSY);
      ibv_srq_init_attr attr{.attr = {.max_wr = 1u << 30, .max_sge = 1}};
      EXPECT_EQ(verbs().create_srq(s.hca.pd(), &attr), nullptr);
      EXPECT_EQ(errno, EINVAL);
    }
    s.wire.meet();
  });
}

}  // namespace
}  // namespace noria::test
