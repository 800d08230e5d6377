// Wrong use of the verbs: each mistake is answered with the status that the specification
// gives it, nothing lands that should not, and what was queued behind it is flushed.

#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/support/verbs_link.hpp"

namespace noria::test {
namespace {

void expect_untouched(const Link& link) {
  for (size_t i = 0; i < link.buffer->size(); ++i)
    ASSERT_EQ(link.buffer->data()[i], 0x55) << "at " << i;
}

// Side 0 posts what `make` gives; it fails with `status`. Side 1's memory stays as it was.
void expect_refusal(ibv_wc_status status, SendSpec (*make)(const Link&),
                    const ConnectSpec& target_spec = {}, int target_access = kAllAccess) {
  run_pair([&](Post& p) {
    const bool target = p.side == 1;
    Link link(p, {.access = target ? target_access : kAllAccess,
                  .connect = target ? target_spec : ConnectSpec{}});
    std::memset(link.buffer->data(), target ? 0x55 : 0x77, link.buffer->size());
    link.wire.meet();
    if (!target) {
      const SendSpec spec = make(link);
      ASSERT_EQ(post(link.qp.get(), spec), 0);
      ASSERT_EQ(post(link.qp.get(), link.write(77, 8, link.remote)), 0);
      const ibv_wc wc = expect_completion(link.cq.get(), spec.id, status);
      EXPECT_EQ(wc.qp_num, link.qp->qp_num);
      expect_completion(link.cq.get(), 77, IBV_WC_WR_FLUSH_ERR);
      EXPECT_EQ(link.state(), IBV_QPS_ERR);
    }
    link.wire.meet();
    if (target) expect_untouched(link);
    link.wire.meet();
  });
}

TEST(VerbsErrors, A_wrong_remote_key_is_refused) {
  expect_refusal(IBV_WC_REM_ACCESS_ERR, [](const Link& l) {
    return l.write(1, 64, {l.remote.address, l.remote.rkey ^ 0x40});
  });
  expect_refusal(IBV_WC_REM_ACCESS_ERR, [](const Link& l) {
    return l.read(1, 40000, {l.remote.address, l.remote.rkey + 1});
  });
}

TEST(VerbsErrors, Remote_bounds_are_exact) {
  expect_refusal(IBV_WC_REM_ACCESS_ERR, [](const Link& l) {
    return l.write(1, 64, {l.remote.address + 65536 - 63, l.remote.rkey});
  });
  expect_refusal(IBV_WC_REM_ACCESS_ERR, [](const Link& l) {
    return l.write(1, 64, {l.remote.address - 1, l.remote.rkey});
  });
  // An end that wraps round the address space.
  expect_refusal(IBV_WC_REM_ACCESS_ERR, [](const Link& l) {
    return l.read(1, 64, {UINT64_MAX - 10, l.remote.rkey});
  });
}

TEST(VerbsErrors, Remote_access_must_be_granted_by_the_region) {
  expect_refusal(
      IBV_WC_REM_ACCESS_ERR, [](const Link& l) { return l.write(1, 64, l.remote); }, {},
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_READ);
  expect_refusal(
      IBV_WC_REM_ACCESS_ERR, [](const Link& l) { return l.read(1, 64, l.remote); }, {},
      IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE);
}

TEST(VerbsErrors, Remote_access_must_be_granted_by_the_queue_pair) {
  expect_refusal(IBV_WC_REM_ACCESS_ERR, [](const Link& l) { return l.write(1, 64, l.remote); },
                 {.access = IBV_ACCESS_REMOTE_READ});
}

TEST(VerbsErrors, A_wrong_local_key_or_bound_is_refused_here) {
  run_pair([](Post& p) {
    Link link(p);
    for (const bool key : {true, false}) {
      ibv_sge sge{link.buffer->address(), 64, link.buffer->lkey() ^ (key ? 0x40u : 0u)};
      if (!key) sge.addr += 65536 - 63;
      ibv_send_wr wr{
          .wr_id = 5, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = 0};
      wr.wr.rdma.remote_addr = link.remote.address;
      wr.wr.rdma.rkey = link.remote.rkey;
      ibv_send_wr* bad = nullptr;
      ASSERT_EQ(ibv_post_send(link.qp.get(), &wr, &bad), 0);
      expect_completion(link.cq.get(), 5, IBV_WC_LOC_PROT_ERR);
      link.wire.meet();
      link.reconnect();
    }
  });
}

TEST(VerbsErrors, A_read_needs_local_write_access) {
  run_pair([](Post& p) {
    Link link(p);
    const auto readonly = link.hca.make_buffer(4096, Memory::plain, IBV_ACCESS_REMOTE_READ);
    ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_READ,
                                   .id = 5,
                                   .pieces = {{readonly.get(), 0, 64}},
                                   .remote = link.remote}),
              0);
    expect_completion(link.cq.get(), 5, IBV_WC_LOC_PROT_ERR);
    link.wire.meet();
  });
}

TEST(VerbsErrors, An_old_key_does_not_come_alive_again) {
  run_pair([](Post& p) {
    Link link(p);
    std::memset(link.buffer->data(), p.side == 1 ? 0x55 : 0x77, link.buffer->size());
    Region old{};
    if (p.side == 1) {
      const auto first = link.hca.make_buffer(4096);
      old = {link.buffer->address(), first->rkey()};
    }
    // Many regions, born and gone, so that every index is used again.
    std::vector<std::unique_ptr<Buffer>> later;
    for (int i = 0; i < 300; ++i) {
      later.push_back(link.hca.make_buffer(4096));
      EXPECT_NE(later.back()->rkey(), old.rkey);
      if (i % 3 == 0) later.clear();
    }
    old = p.peer.exchange(old);
    if (p.side == 0) {
      ASSERT_EQ(post(link.qp.get(), link.write(1, 64, old)), 0);
      expect_completion(link.cq.get(), 1, IBV_WC_REM_ACCESS_ERR);
    }
    link.wire.meet();
    if (p.side == 1) expect_untouched(link);
  });
}

TEST(VerbsErrors, A_message_longer_than_its_receive_fails_on_both_sides) {
  for (const uint32_t bytes : {101u, 5000u}) {
    run_pair([bytes](Post& p) {
      Link link(p);
      ASSERT_EQ(post_recv(link.qp.get(), 8, link.piece(0, 100)), 0);
      ASSERT_EQ(post_recv(link.qp.get(), 9, link.piece(0, 100)), 0);
      link.wire.meet();
      if (p.side == 0) {
        ASSERT_EQ(post(link.qp.get(), {.id = 1, .pieces = link.piece(0, bytes)}), 0);
      }
      // Send and receive queue are two; their completions come in either order.
      uint64_t received = 8;
      for (int i = 0; i < (p.side == 0 ? 3 : 2); ++i) {
        const ibv_wc wc = wait_completion(link.cq.get());
        if (wc.wr_id == 1) {
          EXPECT_EQ(wc.status, IBV_WC_REM_INV_REQ_ERR);
          continue;
        }
        EXPECT_EQ(wc.status,
                  p.side == 1 && received == 8 ? IBV_WC_LOC_LEN_ERR : IBV_WC_WR_FLUSH_ERR);
        EXPECT_EQ(wc.wr_id, received++);
      }
      EXPECT_EQ(link.state(), IBV_QPS_ERR);
      link.wire.meet();
    });
  }
}

TEST(VerbsErrors, A_short_receive_among_long_ones_is_still_too_short) {
  run_pair([](Post& p) {
    Link link(p, {.connect = {.rnr_retry = 7}});
    if (p.side == 1) {
      // Twice as many as are outstanding at a time, so that the first are used up on the way.
      for (uint64_t i = 0; i < 4; ++i)
        ASSERT_EQ(post_recv(link.qp.get(), i, link.piece(0, i == 1 ? 30 : 40)), 0);
      link.wire.meet();
      for (uint64_t i = 0; i < 4; ++i) {
        expect_completion(link.cq.get(), i);
        ASSERT_EQ(post_recv(link.qp.get(), i + 4, link.piece(0, i == 3 ? 39 : 40)), 0);
        link.wire.meet();
      }
      for (uint64_t i = 4; i < 7; ++i) expect_completion(link.cq.get(), i);
      expect_completion(link.cq.get(), 7, IBV_WC_LOC_LEN_ERR);
    } else {
      link.wire.meet();
      const auto send = [&link](uint64_t id, uint32_t bytes) {
        return post(link.qp.get(), {.id = id, .pieces = link.piece(0, bytes)});
      };
      for (uint64_t i = 0; i < 4; ++i) {
        ASSERT_EQ(send(i, i == 1 ? 30 : 40), 0);
        expect_completion(link.cq.get(), i);
        link.wire.meet();
      }
      for (uint64_t i = 4; i < 8; ++i) ASSERT_EQ(send(i, 40), 0);
      for (uint64_t i = 4; i < 7; ++i) expect_completion(link.cq.get(), i);
      expect_completion(link.cq.get(), 7, IBV_WC_REM_INV_REQ_ERR);
    }
    link.wire.meet();
  });
}

// Side 1 posts two receives, the second with memory that is not there to receive in.
void expect_bad_receive(bool is_deregistered) {
  run_pair([is_deregistered](Post& p) {
    Link link(p);
    if (p.side == 1) {
      const auto other = link.hca.make_buffer(4096);
      const uint32_t key = is_deregistered ? other->lkey() : link.buffer->lkey() ^ 0x40;
      ASSERT_EQ(post_recv(link.qp.get(), 1, link.piece(0, 64)), 0);
      ibv_sge sge{other->address(), 64, key};
      ibv_recv_wr wr{.wr_id = 2, .sg_list = &sge, .num_sge = 1}, *bad = nullptr;
      ASSERT_EQ(ibv_post_recv(link.qp.get(), &wr, &bad), 0);
      if (is_deregistered) {
        ASSERT_EQ(other->deregister(), 0);
      }
      link.wire.meet();
      expect_completion(link.cq.get(), 1);
      expect_completion(link.cq.get(), 2, IBV_WC_LOC_PROT_ERR);
    } else {
      link.wire.meet();
      for (const uint64_t i : {1u, 2u})
        ASSERT_EQ(post(link.qp.get(), {.id = i, .pieces = link.piece(0, 8)}), 0);
      expect_completion(link.cq.get(), 1);
      expect_completion(link.cq.get(), 2, IBV_WC_REM_OP_ERR);
    }
    link.wire.meet();
    EXPECT_EQ(link.state(), IBV_QPS_ERR);
    link.wire.meet();
  });
}

TEST(VerbsErrors, A_receive_with_a_bad_key_fails_on_both_sides) { expect_bad_receive(false); }

TEST(VerbsErrors, A_receive_whose_memory_was_deregistered_fails_on_both_sides) {
  expect_bad_receive(true);
}

TEST(VerbsErrors, Receiver_not_ready_gives_up_after_its_retries) {
  run_pair([](Post& p) {
    Link link(p, {.connect = {.rnr_retry = 2}});
    if (p.side == 0) {
      ASSERT_EQ(post(link.qp.get(), {.id = 1, .pieces = link.piece(0, 100)}), 0);
      ASSERT_EQ(post(link.qp.get(), {.id = 2, .flags = 0}), 0);
      expect_completion(link.cq.get(), 1, IBV_WC_RNR_RETRY_EXC_ERR);
      expect_completion(link.cq.get(), 2, IBV_WC_WR_FLUSH_ERR);  // though not signalled
    }
    link.wire.meet();
  });
}

TEST(VerbsErrors, A_queue_pair_in_error_flushes_both_queues_and_what_is_posted_later) {
  run_pair([](Post& p) {
    Link link(p, {.qp = {.send_depth = 8, .recv_depth = 8}});
    for (uint64_t i = 0; i < 5; ++i) ASSERT_EQ(post_recv(link.qp.get(), 100 + i, {}), 0);
    link.wire.meet();
    ASSERT_EQ(to_state(link.qp.get(), IBV_QPS_ERR), 0);
    for (uint64_t i = 0; i < 5; ++i) expect_completion(link.cq.get(), 100 + i, IBV_WC_WR_FLUSH_ERR);
    for (uint64_t i = 0; i < 50; ++i) {
      ASSERT_EQ(post(link.qp.get(), {.id = i, .flags = 0}), 0);
      expect_completion(link.cq.get(), i, IBV_WC_WR_FLUSH_ERR);
      ASSERT_EQ(post_recv(link.qp.get(), 200 + i, {}), 0);
      expect_completion(link.cq.get(), 200 + i, IBV_WC_WR_FLUSH_ERR);
    }
    link.wire.meet();
    // Expect: as good as new after a reset.
    link.reconnect();
    ASSERT_EQ(post_recv(link.qp.get(), 1, {}), 0);
    link.wire.meet();
    ASSERT_EQ(post(link.qp.get(), {.id = 2}), 0);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(wait_completion(link.cq.get()).status, IBV_WC_SUCCESS);
    link.wire.meet();
  });
}

TEST(VerbsErrors, A_sleeper_is_woken_by_a_flush) {
  run_pair([](Post& p) {
    Hca hca;
    const auto channel = hca.make_channel();
    const auto cq = hca.make_cq(64, channel.get());
    const auto qp = hca.make_qp(cq.get());
    hca.connect(qp.get(), p.peer);
    ASSERT_EQ(post_recv(qp.get(), 1, {}), 0);
    ASSERT_EQ(ibv_req_notify_cq(cq.get(), 0), 0);
    ASSERT_EQ(to_state(qp.get(), IBV_QPS_ERR), 0);
    ibv_cq* which = nullptr;
    void* context = nullptr;
    ASSERT_EQ(verbs().get_cq_event(channel.get(), &which, &context), 0);
    verbs().ack_cq_events(which, 1);
    expect_completion(cq.get(), 1, IBV_WC_WR_FLUSH_ERR);
    p.peer.meet();
  });
}

TEST(VerbsErrors, Requests_are_refused_in_states_that_have_no_use_for_them) {
  run_pair([](Post& p) {
    Hca hca;
    const auto cq = hca.make_cq();
    const auto qp = hca.make_qp(cq.get());
    const Address remote = p.peer.exchange(hca.address_of(qp.get()));
    EXPECT_EQ(post(qp.get(), {.id = 1}), EINVAL);
    EXPECT_EQ(post_recv(qp.get(), 1, {}), EINVAL);
    ASSERT_EQ(to_init(qp.get(), 0), 0);
    EXPECT_EQ(post(qp.get(), {.id = 1}), EINVAL);
    EXPECT_EQ(post_recv(qp.get(), 1, {}), 0);
    ASSERT_EQ(to_rtr(qp.get(), remote, {}), 0);
    EXPECT_EQ(post(qp.get(), {.id = 1}), EINVAL);
    p.peer.meet();
  });
}

TEST(VerbsErrors, Transitions_need_their_attributes_and_their_order) {
  run_pair([](Post& p) {
    Hca hca;
    const auto cq = hca.make_cq();
    const auto qp = hca.make_qp(cq.get());
    const Address remote = p.peer.exchange(hca.address_of(qp.get()));
    ibv_qp_attr attr{.qp_state = IBV_QPS_INIT, .port_num = 1};
    EXPECT_EQ(verbs().modify_qp(qp.get(), &attr, IBV_QP_STATE | IBV_QP_PORT), EINVAL);
    EXPECT_EQ(to_rtr(qp.get(), remote, {}), EINVAL);
    EXPECT_EQ(to_rts(qp.get(), 1, {}), EINVAL);
    ASSERT_EQ(to_init(qp.get(), 0), 0);
    attr = {.qp_state = IBV_QPS_RTR, .dest_qp_num = remote.qpn};
    EXPECT_EQ(verbs().modify_qp(qp.get(), &attr, IBV_QP_STATE | IBV_QP_DEST_QPN), EINVAL);
    EXPECT_EQ(to_rts(qp.get(), 1, {}), EINVAL);
    ASSERT_EQ(to_rtr(qp.get(), remote, {}), 0);
    attr = {.qp_state = IBV_QPS_RTS, .sq_psn = 1};
    EXPECT_EQ(verbs().modify_qp(qp.get(), &attr, IBV_QP_STATE | IBV_QP_SQ_PSN), EINVAL);
    ASSERT_EQ(to_rts(qp.get(), 1, {}), 0);
    p.peer.meet();
  });
}

TEST(VerbsErrors, Queues_are_as_deep_as_was_asked_and_say_when_full) {
  run_pair([](Post& p) {
    Link link(p, {.qp = {.send_depth = 8, .recv_depth = 8, .sges = 2, .inline_bytes = 32}});
    ibv_qp_attr attr{};
    ibv_qp_init_attr init{};
    ASSERT_EQ(verbs().query_qp(link.qp.get(), &attr, IBV_QP_CAP, &init), 0);
    ASSERT_GE(init.cap.max_recv_wr, 8u);
    ASSERT_GE(init.cap.max_send_wr, 8u);
    for (uint64_t i = 0; i < init.cap.max_recv_wr; ++i)
      ASSERT_EQ(post_recv(link.qp.get(), 100 + i, {}), 0);
    EXPECT_EQ(post_recv(link.qp.get(), 0, {}), ENOMEM);

    const std::vector<Piece> one = link.piece(0, 8);
    std::vector<Piece> many(init.cap.max_send_sge + 1, one[0]);
    EXPECT_NE(post(link.qp.get(), {.id = 1, .pieces = many}), 0);
    EXPECT_NE(post(link.qp.get(), {.id = 1,
                                   .pieces = link.piece(0, init.cap.max_inline_data + 1),
                                   .flags = IBV_SEND_INLINE}),
              0);
    link.wire.meet();

    // A list with one too many: all but the last are queued, and the last is named. Nothing may
    // complete meanwhile, since a completion that nobody polled holds its place.
    const size_t depth = init.cap.max_send_wr;
    std::vector<ibv_send_wr> wrs(depth + 1);
    for (size_t i = 0; i <= depth; ++i)
      wrs[i] = {.wr_id = i,
                .next = i < depth ? &wrs[i + 1] : nullptr,
                .opcode = IBV_WR_SEND,
                .send_flags = IBV_SEND_SIGNALED};
    ibv_send_wr* bad = nullptr;
    EXPECT_EQ(ibv_post_send(link.qp.get(), wrs.data(), &bad), ENOMEM);
    EXPECT_EQ(bad, &wrs[depth]);
    uint64_t sent = 0, received = 100;
    for (size_t i = 0; i < depth; ++i) {
      const ibv_wc wc = wait_completion(link.cq.get());
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      EXPECT_EQ(wc.wr_id, wc.opcode == IBV_WC_RECV ? received++ : sent++);
    }
    link.wire.meet();
  });
}

TEST(VerbsErrors, What_is_in_use_is_not_destroyed) {
  run_pair([](Post& p) {
    Hca hca;
    const auto channel = hca.make_channel();
    const auto cq = hca.make_cq(64, channel.get());
    const auto qp = hca.make_qp(cq.get());
    const auto buffer = hca.make_buffer(4096);
    EXPECT_EQ(verbs().destroy_cq(cq.get()), EBUSY);
    EXPECT_EQ(verbs().dealloc_pd(hca.pd()), EBUSY);
    EXPECT_EQ(verbs().destroy_comp_channel(channel.get()), EBUSY);
    hca.connect(qp.get(), p.peer);
    ASSERT_EQ(post_recv(qp.get(), 1, {}), 0);
    p.peer.meet();
    ASSERT_EQ(post(qp.get(), {.id = 2}), 0);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(wait_completion(cq.get()).status, IBV_WC_SUCCESS);
    p.peer.meet();
  });
}

// Whether an asynchronous event is there to be taken within `timeout_ms`.
bool has_async_event(const Hca& hca, int timeout_ms) {
  pollfd p{.fd = hca.context()->async_fd, .events = POLLIN, .revents = 0};
  return ::poll(&p, 1, timeout_ms) == 1;
}

// Side 0 breaks the rules of side 1, which has an event of it.
void break_the_rules(Link& link, int side) {
  if (side == 0) {
    ASSERT_EQ(post(link.qp.get(), link.write(1, 8, {link.remote.address, 0})), 0);
    expect_completion(link.cq.get(), 1, IBV_WC_REM_ACCESS_ERR);
  } else {
    ASSERT_TRUE(has_async_event(link.hca, 20000));
  }
}

TEST(VerbsErrors, An_event_is_told_on_a_descriptor_and_destruction_waits_for_its_acknowledgement) {
  run_pair([](Post& p) {
    Link link(p);
    EXPECT_FALSE(has_async_event(link.hca, 0));
    link.wire.meet();
    ASSERT_NO_FATAL_FAILURE(break_the_rules(link, p.side));
    if (p.side == 1) {
      ibv_async_event event{};
      ASSERT_EQ(verbs().get_async_event(link.hca.context(), &event), 0);
      EXPECT_EQ(event.event_type, IBV_EVENT_QP_ACCESS_ERR);
      EXPECT_EQ(event.element.qp, link.qp.get());
      EXPECT_FALSE(has_async_event(link.hca, 0));
      std::atomic<bool> is_acknowledged{false};
      std::thread destroyer([&] {
        // A device that gives up waiting says so, and has destroyed nothing.
        int answer = EBUSY;
        while (answer == EBUSY) answer = verbs().destroy_qp(link.qp.get());
        EXPECT_TRUE(is_acknowledged.load(std::memory_order_acquire));
        EXPECT_EQ(answer, 0);
        static_cast<void>(link.qp.release());
      });
      for (int i = 0; i < 1000; ++i) sched_yield();  // time to do wrong in
      is_acknowledged.store(true, std::memory_order_release);
      verbs().ack_async_event(&event);
      destroyer.join();
    }
    link.wire.meet();
  });
}

TEST(VerbsErrors, Events_of_what_is_destroyed_are_gone_from_the_descriptor_too) {
  run_pair([](Post& p) {
    Link link(p);
    ASSERT_NO_FATAL_FAILURE(break_the_rules(link, p.side));
    link.qp.reset();
    EXPECT_FALSE(has_async_event(link.hca, 0));
    const int fd = link.hca.context()->async_fd;
    ASSERT_EQ(fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK), 0);
    ibv_async_event event{};
    EXPECT_EQ(verbs().get_async_event(link.hca.context(), &event), -1);
    EXPECT_EQ(errno, EAGAIN);
    link.wire.meet();
  });
}

TEST(VerbsErrors, A_completion_queue_that_overruns_says_so) {
  run_pair([](Post& p) {
    Hca hca;
    const auto small = hca.make_cq(4);
    ASSERT_GE(small->cqe, 4);
    const auto qp = hca.make_qp(small.get(), {.send_depth = 256});
    hca.connect(qp.get(), p.peer);
    int accepted = 0;
    for (int i = 0; i < 200; ++i)
      if (post(qp.get(), {.opcode = IBV_WR_RDMA_WRITE, .id = static_cast<uint64_t>(i)}) == 0)
        ++accepted;
    // Expect: every accepted request is answered for, or the queue reports that it cannot.
    ibv_wc wc{};
    int completed = 0;
    bool failed = false;
    const Nanoseconds deadline = now_ns() + 10_s;
    for (uint64_t turn = 0; completed < accepted && !failed; ++turn) {
      const int n = ibv_poll_cq(small.get(), 1, &wc);
      failed = n < 0 || (n == 1 && wc.status != IBV_WC_SUCCESS);
      completed += n == 1 ? 1 : 0;
      ASSERT_TRUE(wait_step(deadline, turn)) << completed << " of " << accepted << ", no error";
    }
    p.peer.meet();
  });
}

}  // namespace
}  // namespace noria::test
