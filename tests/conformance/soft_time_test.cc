// Time in the test's own hands (ibv_noria_turn): what the device does by the clock it does to the
// nanosecond, and without a clock nothing of it.
#include <errno.h>

#include <cstdlib>

#include "base/units.hpp"
#include "tests/support/verbs_fixture.hpp"

namespace noria::test {
namespace {

constexpr Nanoseconds kStart = 5_s;

// Two queue pairs of one device, connected to each other in one process, which is alone.
struct Loop {
  explicit Loop(const ConnectSpec& spec, size_t bytes = 4096, unsigned device = 0)
      : hca(device),
        cq(hca.make_cq()),
        near(hca.make_qp(cq.get())),
        far(hca.make_qp(cq.get())),
        buffer(hca.make_buffer(bytes)) {
    hca.connect(near.get(), hca.address_of(far.get()), spec);
    hca.connect(far.get(), hca.address_of(near.get()), spec);
  }
  void write(uint64_t id, uint32_t bytes) const {
    ASSERT_EQ(post(near.get(), {.opcode = IBV_WR_RDMA_WRITE,
                                .id = id,
                                .pieces = {{buffer.get(), 0, bytes}},
                                .remote = {buffer->address(), buffer->rkey()}}),
              0);
  }
  // Lets time go on until something completes; when that was.
  Nanoseconds complete(uint64_t id, ibv_wc_status status) {
    ibv_wc wc{};
    for (int turns = 0; turns < 100000; ++turns) {
      const Nanoseconds next = verbs().noria_turn(now);
      if (ibv_poll_cq(cq.get(), 1, &wc) == 1 || next == kNever) break;
      now = std::max(now, next);
    }
    EXPECT_EQ(wc.wr_id, id);
    EXPECT_EQ(wc.status, status);
    return now;
  }

  Nanoseconds now = kStart;
  Hca hca;
  Owned<ibv_cq> cq;
  Owned<ibv_qp> near, far;
  std::unique_ptr<Buffer> buffer;
};

void run_alone(const Body& body) {
  Crew crew({body});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
}

TEST(SoftTime, Is_not_taken_from_devices_that_are_open) {
  run_alone([](Post&) {
    const Hca hca;
    EXPECT_EQ(verbs().noria_turn(kStart), -1);
    EXPECT_EQ(errno, EBUSY);
  });
}

TEST(SoftTime, Stands_between_turns) {
  run_alone([](Post&) {
    EXPECT_EQ(verbs().noria_turn(kStart), kNever) << "no device, nothing to wait for";
    Loop loop({.ack_timeout = 14, .retry_count = 0});
    ASSERT_EQ(to_state(loop.far.get(), IBV_QPS_RESET), 0);
    loop.write(1, 8);
    // However often it is asked.
    for (int i = 0; i < 1000; ++i) {
      verbs().noria_turn(kStart);
      ASSERT_TRUE(is_empty(loop.cq.get()));
    }
    EXPECT_GE(loop.complete(1, IBV_WC_RETRY_EXC_ERR), kStart + (Nanoseconds{4096} << 14));
  });
}

TEST(SoftTime, Requests_are_given_up_when_it_is_time) {
  run_alone([](Post&) {
    verbs().noria_turn(kStart);
    Loop loop({.ack_timeout = 14, .retry_count = 2});
    ASSERT_EQ(to_state(loop.far.get(), IBV_QPS_RESET), 0);
    loop.write(1, 8);
    // The device looks every ten milliseconds at what has waited long.
    const Nanoseconds limit = kStart + (Nanoseconds{4096} << 14) * 3;
    const Nanoseconds given_up = loop.complete(1, IBV_WC_RETRY_EXC_ERR);
    EXPECT_GE(given_up, limit);
    EXPECT_LT(given_up, limit + 10_ms);
  });
}

TEST(SoftTime, A_shaped_link_takes_what_its_rate_says) {
  run_alone([](Post&) {
    ::setenv("NORIA_SOFT_RATE_GBIT", "8", 1);  // a nanosecond a byte
    ::setenv("NORIA_SOFT_LATENCY_US", "200", 1);
    verbs().noria_turn(kStart);
    Loop loop({}, 4_MiB);
    loop.write(1, 3'000'000);
    EXPECT_EQ(loop.complete(1, IBV_WC_SUCCESS), kStart + 3'000'000 + 2 * 200_us);
  });
}

TEST(SoftTime, A_port_with_a_shape_of_its_own_keeps_that) {
  run_alone([](Post&) {
    ::setenv("NORIA_SOFT_DEVICES", "name=a,shape=16;name=b;name=c,shape=0.5", 1);
    ::setenv("NORIA_SOFT_RATE_GBIT", "8", 1);  // of who has none
    ::setenv("NORIA_SOFT_LATENCY_US", "200", 1);
    verbs().noria_turn(kStart);
    Loop fast({}, 4_MiB, 0), plain({}, 4_MiB, 1), slow({}, 4_MiB, 2);
    fast.write(1, 3'000'000);
    EXPECT_EQ(fast.complete(1, IBV_WC_SUCCESS), kStart + 1'500'000 + 2 * 200_us);
    plain.now = fast.now;
    plain.write(1, 3'000'000);
    EXPECT_EQ(plain.complete(1, IBV_WC_SUCCESS), fast.now + 3'000'000 + 2 * 200_us);
    slow.now = plain.now;
    slow.write(1, 3'000'000);
    EXPECT_EQ(slow.complete(1, IBV_WC_SUCCESS), plain.now + 48'000'000 + 2 * 200_us);
  });
}

TEST(SoftTime, A_port_without_a_shape_is_not_slowed_by_one_that_has) {
  run_alone([](Post&) {
    ::setenv("NORIA_SOFT_DEVICES", "name=a,shape=8;name=b", 1);
    verbs().noria_turn(kStart);
    Loop plain({}, 4_MiB, 1);
    plain.write(1, 3'000'000);
    EXPECT_LT(plain.complete(1, IBV_WC_SUCCESS), kStart + 3'000'000);
  });
}

TEST(SoftTime, A_port_comes_up_when_it_is_time) {
  run_alone([](Post&) {
    ::setenv("NORIA_SOFT_FAULTS", "port=*: after msgs=0 do down for=50ms", 1);
    verbs().noria_turn(kStart);
    Loop loop({});
    loop.write(1, 8);
    const Nanoseconds done = loop.complete(1, IBV_WC_SUCCESS);
    EXPECT_GE(done, kStart + 50_ms);
    EXPECT_LT(done, kStart + 60_ms);
    EXPECT_EQ(next_event(loop.hca).event_type, IBV_EVENT_PORT_ERR);
    EXPECT_EQ(next_event(loop.hca).event_type, IBV_EVENT_PORT_ACTIVE);
  });
}

}  // namespace
}  // namespace noria::test
