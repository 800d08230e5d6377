// NORIA_SOFT_FAULTS at work: what is set happens where its count says, as a program sees it on
// hardware, and nothing else does.
#include <cstdlib>
#include <string>

#include "tests/support/verbs_link.hpp"

namespace noria::test {
namespace {

// 4.096 us * 2^12 = 17 ms, twice: a peer that does not answer is given up after 34 ms.
constexpr ConnectSpec kShort{.ack_timeout = 12, .retry_count = 1};
// 4.096 us * 2^19 = 2.1 s, eight times: nobody is given up in here.
constexpr ConnectSpec kLong{.ack_timeout = 19, .retry_count = 7};

void set_faults(const std::string& text) { ::setenv("NORIA_SOFT_FAULTS", text.c_str(), 1); }

// Side 0 runs `act` over a link whose faults are set; side 1 has none, and `look`s when it is done.
using Act = std::function<void(Link&)>;
void run_faulty(
    const std::string& faults, const ConnectSpec& connect, const Act& act,
    const Act& look = [](Link&) {}) {
  run_pair([&](Post& p) {
    if (p.side == 0) set_faults(faults);
    Link link(p, {.connect = connect});
    paint(link.buffer->data(), link.buffer->size(), static_cast<uint64_t>(p.side));
    link.wire.meet();
    if (p.side == 0) act(link);
    link.wire.meet();
    if (p.side == 1) look(link);
    link.wire.meet();
  });
}

void write(Link& link, uint64_t id, uint64_t offset) {
  ASSERT_EQ(post(link.qp.get(), link.write(id, 64, link.at(offset))), 0);
}

ibv_port_state port_state(const Link& link) {
  ibv_port_attr port{};
  EXPECT_EQ(
      verbs_get_ctx(link.hca.context())->query_port(link.hca.context(), 1, &port, sizeof port), 0);
  return port.state;
}

// Whose bytes stand at the place of request `i`.
bool has_landed(const Link& link, uint64_t i) {
  return first_wrong(link.buffer->data() + i * 64, 64, 0) == 64;
}
bool is_untouched(const Link& link, uint64_t i) {
  return first_wrong(link.buffer->data() + i * 64, 64, 1, i * 64) == 64;
}

TEST(SoftFaults, A_request_fails_where_its_count_says) {
  run_faulty(
      "qp=*: after msgs=3 do fail status=10", kLong,
      [](Link& link) {
        for (uint64_t i = 0; i < 5; ++i) write(link, i, i * 64);
        for (uint64_t i = 0; i < 3; ++i) expect_completion(link.cq.get(), i);
        expect_completion(link.cq.get(), 3, IBV_WC_REM_ACCESS_ERR);
        expect_completion(link.cq.get(), 4, IBV_WC_WR_FLUSH_ERR);
        EXPECT_EQ(link.state(), IBV_QPS_ERR);
      },
      [](Link& link) {
        for (uint64_t i = 0; i < 3; ++i) EXPECT_TRUE(has_landed(link, i)) << i;
        for (uint64_t i = 3; i < 5; ++i) EXPECT_TRUE(is_untouched(link, i)) << i;
      });
}

TEST(SoftFaults, A_count_goes_on_after_a_reset) {
  run_pair([](Post& p) {
    if (p.side == 0) set_faults("qp=1: every bytes=128 do fail status=11");
    Link link(p, {.connect = kLong});
    std::string outcome;
    for (int life = 0; life < 3; ++life) {
      link.reconnect();
      link.wire.meet();
      for (uint64_t i = 0; p.side == 0 && i < 2; ++i) {
        write(link, i, 0);
        const ibv_wc_status status = wait_completion(link.cq.get()).status;
        outcome += status == IBV_WC_SUCCESS ? "+" : status == IBV_WC_WR_FLUSH_ERR ? "f" : "-";
      }
      link.wire.meet();
    }
    // What is flushed has not begun and does not count.
    EXPECT_EQ(outcome, p.side == 0 ? "++-f+-" : "");
  });
}

TEST(SoftFaults, A_loss_that_retries_outlast_harms_nothing) {
  run_faulty(
      "qp=*: every msgs=2 do lose for=5ms", kLong,
      [](Link& link) {
        for (uint64_t i = 0; i < 9; ++i) write(link, i, i * 64);
        for (uint64_t i = 0; i < 9; ++i) expect_completion(link.cq.get(), i);
      },
      [](Link& link) {
        for (uint64_t i = 0; i < 9; ++i) EXPECT_TRUE(has_landed(link, i)) << i;
      });
}

TEST(SoftFaults, A_longer_loss_ends_the_connection_and_nothing_has_landed) {
  run_faulty(
      "qp=*: after msgs=1 do lose for=60s", kShort,
      [](Link& link) {
        for (uint64_t i = 0; i < 3; ++i) write(link, i, i * 64);
        expect_completion(link.cq.get(), 0);
        expect_completion(link.cq.get(), 1, IBV_WC_RETRY_EXC_ERR);
        expect_completion(link.cq.get(), 2, IBV_WC_WR_FLUSH_ERR);
      },
      [](Link& link) {
        EXPECT_TRUE(has_landed(link, 0));
        EXPECT_TRUE(is_untouched(link, 1));
        EXPECT_TRUE(is_untouched(link, 2));
      });
}

TEST(SoftFaults, Where_only_the_answer_is_lost_a_write_has_landed_all_the_same) {
  run_faulty(
      "qp=*: after msgs=1 do mute for=60s", kShort,
      [](Link& link) {
        for (uint64_t i = 0; i < 3; ++i) write(link, i, i * 64);
        expect_completion(link.cq.get(), 0);
        expect_completion(link.cq.get(), 1, IBV_WC_RETRY_EXC_ERR);
        expect_completion(link.cq.get(), 2, IBV_WC_WR_FLUSH_ERR);
      },
      [](Link& link) {
        EXPECT_TRUE(has_landed(link, 1));
        EXPECT_TRUE(is_untouched(link, 2));
      });
}

TEST(SoftFaults, A_message_whose_answer_comes_late_is_received_once) {
  run_pair([](Post& p) {
    if (p.side == 0) set_faults("qp=*: every msgs=1 do mute for=3ms");
    Link link(p, {.connect = kLong});
    for (uint64_t i = 0; i < 4; ++i) ASSERT_EQ(post_recv(link.qp.get(), i, link.piece(0, 64)), 0);
    link.wire.meet();
    for (uint64_t i = 0; i < 4; ++i) {
      if (p.side == 0) {
        ASSERT_EQ(post(link.qp.get(), {.id = i, .pieces = link.piece(0, 64)}), 0);
      }
      expect_completion(link.cq.get(), i);
    }
    EXPECT_TRUE(is_empty(link.cq.get()));
    link.wire.meet();
  });
}

TEST(SoftFaults, A_sleeper_is_woken_for_a_message_whose_answer_is_lost) {
  run_pair([](Post& p) {
    if (p.side == 0) set_faults("qp=*: after msgs=0 do mute for=60s");
    Link link(p, {.connect = kShort, .sleeps = true});
    ASSERT_EQ(post_recv(link.qp.get(), 1, link.piece(0, 64)), 0);
    link.wire.meet();
    if (p.side == 0) {
      ASSERT_EQ(post(link.qp.get(), {.id = 1, .pieces = link.piece(0, 64)}), 0);
    }
    const ibv_wc_status status = link.sleep_for_completion().status;
    EXPECT_EQ(status, p.side == 0 ? IBV_WC_RETRY_EXC_ERR : IBV_WC_SUCCESS);
    link.wire.meet();
  });
}

TEST(SoftFaults, A_read_whose_answer_is_lost_brings_nothing) {
  run_faulty("qp=*: after msgs=0 do mute for=60s", kShort, [](Link& link) {
    ASSERT_EQ(post(link.qp.get(), link.read(1, 64, link.remote)), 0);
    expect_completion(link.cq.get(), 1, IBV_WC_RETRY_EXC_ERR);
    EXPECT_TRUE(has_landed(link, 0)) << "our own bytes still stand there";
  });
}

TEST(SoftFaults, A_flap_shorter_than_the_retries_is_told_and_harms_nothing) {
  run_faulty("port=noria0: after msgs=2 do down for=20ms", kLong, [](Link& link) {
    for (uint64_t i = 0; i < 5; ++i) write(link, i, i * 64);
    EXPECT_EQ(next_event(link.hca).event_type, IBV_EVENT_PORT_ERR);
    EXPECT_EQ(next_event(link.hca).event_type, IBV_EVENT_PORT_ACTIVE);
    EXPECT_EQ(port_state(link), IBV_PORT_ACTIVE);
    for (uint64_t i = 0; i < 5; ++i) expect_completion(link.cq.get(), i);
  });
}

TEST(SoftFaults, A_port_that_stays_down_ends_what_uses_it) {
  run_faulty("port=*: after bytes=100 do down", kShort, [](Link& link) {
    for (uint64_t i = 0; i < 4; ++i) write(link, i, i * 64);
    expect_completion(link.cq.get(), 0);
    expect_completion(link.cq.get(), 1);
    expect_completion(link.cq.get(), 2, IBV_WC_RETRY_EXC_ERR);
    expect_completion(link.cq.get(), 3, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(next_event(link.hca).event_type, IBV_EVENT_PORT_ERR);
    EXPECT_EQ(port_state(link), IBV_PORT_DOWN);
  });
}

TEST(SoftFaults, Nothing_reaches_a_port_that_is_down) {
  run_pair([](Post& p) {
    if (p.side == 1) set_faults("port=*: after msgs=1 do down");
    Link link(p, {.connect = kShort});
    paint(link.buffer->data(), link.buffer->size(), static_cast<uint64_t>(p.side));
    link.wire.meet();
    if (p.side == 1) {
      // Its second request takes the port down.
      for (uint64_t i = 0; i < 2; ++i) write(link, i, 4096);
      EXPECT_EQ(next_event(link.hca).event_type, IBV_EVENT_PORT_ERR);
    }
    link.wire.meet();
    if (p.side == 0) {
      write(link, 1, 0);
      expect_completion(link.cq.get(), 1, IBV_WC_RETRY_EXC_ERR);
      ASSERT_EQ(post(link.qp.get(), link.read(2, 64, link.remote)), 0);
      expect_completion(link.cq.get(), 2, IBV_WC_WR_FLUSH_ERR);
    }
    link.wire.meet();
    if (p.side == 1) {
      EXPECT_TRUE(is_untouched(link, 0));
    }
    link.wire.meet();
  });
}

TEST(SoftFaults, A_peer_waits_for_a_port_that_comes_up_again) {
  run_pair([](Post& p) {
    if (p.side == 1) set_faults("port=*: after msgs=0 do down for=50ms");
    Link link(p, {.connect = kLong});
    paint(link.buffer->data(), link.buffer->size(), static_cast<uint64_t>(p.side));
    link.wire.meet();
    if (p.side == 1) {
      write(link, 7, 4096);
      EXPECT_EQ(next_event(link.hca).event_type, IBV_EVENT_PORT_ERR);
    }
    link.wire.meet();
    if (p.side == 0) {
      write(link, 1, 0);
      expect_completion(link.cq.get(), 1);
    } else {
      expect_completion(link.cq.get(), 7);
      EXPECT_EQ(next_event(link.hca).event_type, IBV_EVENT_PORT_ACTIVE);
    }
    link.wire.meet();
    if (p.side == 1) {
      EXPECT_TRUE(has_landed(link, 0));
    }
    link.wire.meet();
  });
}

TEST(SoftFaults, A_device_that_is_lost_flushes_all_and_refuses_all) {
  run_faulty("port=*: after msgs=1 do fatal", kLong, [](Link& link) {
    ASSERT_EQ(post_recv(link.qp.get(), 9, link.piece(0, 64)), 0);
    for (uint64_t i = 0; i < 2; ++i) write(link, i, i * 64);
    EXPECT_EQ(next_event(link.hca).event_type, IBV_EVENT_DEVICE_FATAL);
    expect_completion(link.cq.get(), 0);
    // The request and the receive, in either order.
    EXPECT_EQ(wait_completion(link.cq.get()).status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(wait_completion(link.cq.get()).status, IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(link.state(), IBV_QPS_ERR);
    EXPECT_EQ(port_state(link), IBV_PORT_DOWN);
    EXPECT_EQ(post(link.qp.get(), link.write(3, 64, link.remote)), EIO);
    errno = 0;
    EXPECT_EQ(verbs().alloc_pd(link.hca.context()), nullptr);
    EXPECT_EQ(errno, EIO);
  });
}

TEST(SoftFaults, Calls_fail_where_their_count_says) {
  Crew crew({[](Post&) {
    set_faults(
        "call=create_qp: after calls=1 do fail errno=12; call=reg_mr: every calls=2 do fail "
        "errno=1; call=modify_qp: after calls=0 do fail errno=110");
    const Hca hca;
    const auto cq = hca.make_cq();
    const auto first = hca.make_qp(cq.get());
    ibv_qp_init_attr attr{.send_cq = cq.get(),
                          .recv_cq = cq.get(),
                          .cap = {.max_send_wr = 1, .max_recv_wr = 1},
                          .qp_type = IBV_QPT_RC};
    EXPECT_EQ(verbs().create_qp(hca.pd(), &attr), nullptr);
    EXPECT_EQ(errno, ENOMEM);
    const auto third = hca.make_qp(cq.get());

    // Of six the third and the fifth.
    std::string outcome;
    uint8_t memory[64];
    for (int i = 0; i < 6; ++i) {
      const Owned<ibv_mr> mr(verbs().reg_mr(hca.pd(), memory, sizeof memory, 0));
      EXPECT_TRUE(mr != nullptr || errno == EPERM);
      outcome += mr != nullptr ? "+" : "-";
    }
    EXPECT_EQ(outcome, "++-+-+");

    EXPECT_EQ(to_init(first.get(), 0), ETIMEDOUT);
    EXPECT_EQ(to_init(first.get(), 0), 0);
  }});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
}

TEST(SoftFaults, A_post_that_fails_posts_nothing) {
  run_faulty("call=post_send: after calls=1 do fail errno=12", kLong, [](Link& link) {
    write(link, 1, 0);
    EXPECT_EQ(post(link.qp.get(), link.write(2, 64, link.remote)), ENOMEM);
    write(link, 3, 64);
    expect_completion(link.cq.get(), 1);
    expect_completion(link.cq.get(), 3);
    EXPECT_TRUE(is_empty(link.cq.get()));
  });
}

}  // namespace
}  // namespace noria::test
