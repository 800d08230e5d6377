// Late placement is late: programs that look too soon see it. One process with both ends, so that
// nothing but its own calls and the device's service thread moves anything.

#include <atomic>
#include <memory>

#include "tests/support/verbs_link.hpp"

namespace noria::test {
namespace {

// Two queue pairs of one process, connected to each other.
struct BothEnds {
  Hca hca;
  Owned<ibv_cq> cq = hca.make_cq();
  Owned<ibv_qp> a = hca.make_qp(cq.get()), b = hca.make_qp(cq.get());
  std::unique_ptr<Buffer> buffer = hca.make_buffer(8192);

  BothEnds() {
    hca.connect(a.get(), hca.address_of(b.get()));
    hca.connect(b.get(), hca.address_of(a.get()));
  }
};

TEST(SoftLate, What_is_posted_is_not_there_yet_and_lands_from_its_end) {
  Crew crew({[](Post&) {
    const BothEnds ends;
    const auto& [hca, cq, a, b, buffer] = ends;
    const Region target{buffer->address() + 4096, buffer->rkey()};
    std::atomic_ref<uint8_t> first(buffer->data()[4096]), last(buffer->data()[4096 + 63]);
    constexpr int kRounds = 100;
    int absent = 0, only_the_end = 0, only_the_start = 0;
    for (int round = 1; round <= kRounds; ++round) {
      const auto value = static_cast<uint8_t>(round);
      std::memset(buffer->data(), value, 64);
      ASSERT_EQ(post(a.get(), {.opcode = IBV_WR_RDMA_WRITE,
                               .id = 1,
                               .pieces = {{buffer.get(), 0, 64}},
                               .remote = target}),
                0);
      absent += last.load() != value ? 1 : 0;
      ibv_wc wc{};
      wait_until(
          [&] {
            const bool is_done = ibv_poll_cq(ends.cq.get(), 1, &wc) == 1;
            // The start first: where it is there, the end has been there before.
            const bool start = first.load() == value;
            const bool end = last.load() == value;
            only_the_end += end && !start ? 1 : 0;
            only_the_start += start && !end ? 1 : 0;
            return is_done;
          },
          "a completion");
      // Expect: by its completion all of it is there.
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      ASSERT_EQ(first.load(), value);
      ASSERT_EQ(last.load(), value);
    }
    // The service thread may be quick now and then; it is not always.
    EXPECT_GT(absent, 0);
    EXPECT_GT(only_the_end, 0);
    EXPECT_EQ(only_the_start, 0);
  }});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
}

TEST(SoftLate, What_follows_a_read_without_a_fence_may_carry_what_was_there_before) {
  Crew crew({[](Post&) {
    const BothEnds ends;
    const auto& [hca, cq, a, b, buffer] = ends;
    uint8_t *const inbox = buffer->data(), *const source = inbox + 1024, *const sink = inbox + 2048;
    for (const bool is_fenced : {false, true}) {
      std::memset(inbox, 1, 64);
      std::memset(source, 2, 64);
      std::memset(sink, 3, 64);
      // A read into the inbox, and a write out of it.
      ibv_sge sge{buffer->address(), 64, buffer->lkey()};
      ibv_send_wr write{.wr_id = 2,
                        .sg_list = &sge,
                        .num_sge = 1,
                        .opcode = IBV_WR_RDMA_WRITE,
                        .send_flags = IBV_SEND_SIGNALED};
      if (is_fenced) write.send_flags |= IBV_SEND_FENCE;
      write.wr.rdma = {buffer->address() + 2048, buffer->rkey()};
      ibv_send_wr read = write;
      read.wr_id = 1;
      read.opcode = IBV_WR_RDMA_READ;
      read.next = &write;
      read.wr.rdma.remote_addr = buffer->address() + 1024;
      ibv_send_wr* bad = nullptr;
      ASSERT_EQ(ibv_post_send(a.get(), &read, &bad), 0);
      expect_completion(cq.get(), 1);
      expect_completion(cq.get(), 2);
      EXPECT_EQ(inbox[0], 2);
      EXPECT_EQ(sink[0], is_fenced ? 2 : 1);
    }
  }});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
}

TEST(SoftLate, Queues_do_not_finish_in_the_order_of_their_posts) {
  Crew crew({[](Post&) {
    constexpr size_t kQueues = 8;
    Hca hca;
    const auto cq = hca.make_cq();
    const auto buffer = hca.make_buffer(65536);
    std::vector<Owned<ibv_qp>> senders, receivers;
    for (size_t i = 0; i < kQueues; ++i) {
      senders.push_back(hca.make_qp(cq.get()));
      receivers.push_back(hca.make_qp(cq.get()));
      hca.connect(senders[i].get(), hca.address_of(receivers[i].get()));
      hca.connect(receivers[i].get(), hca.address_of(senders[i].get()));
    }
    int out_of_order = 0;
    for (int round = 0; round < 20; ++round) {
      for (uint64_t i = 0; i < kQueues; ++i)
        ASSERT_EQ(post(senders[i].get(),
                       {.opcode = IBV_WR_RDMA_WRITE,
                        .id = i,
                        .pieces = {{buffer.get(), 0, 256}},
                        .remote = {buffer->address() + 4096 * (i + 1), buffer->rkey()}}),
                  0);
      uint64_t before = 0;
      for (size_t i = 0; i < kQueues; ++i) {
        const ibv_wc wc = wait_completion(cq.get());
        ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
        out_of_order += wc.wr_id < before ? 1 : 0;
        before = wc.wr_id;
      }
    }
    EXPECT_GT(out_of_order, 0);
  }});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
}

}  // namespace
}  // namespace noria::test
