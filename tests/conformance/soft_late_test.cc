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
  std::unique_ptr<Buffer> buffer =
      hca.make_buffer(8192, Memory::plain, kAllAccess | IBV_ACCESS_REMOTE_ATOMIC);

  explicit BothEnds(ConnectSpec spec = {}) {
    spec.access |= IBV_ACCESS_REMOTE_ATOMIC;
    hca.connect(a.get(), hca.address_of(b.get()), spec);
    hca.connect(b.get(), hca.address_of(a.get()), spec);
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

// A read or atomic of a round: where its answer lands, and whether it has.
struct Answers {
  static constexpr size_t kCount = 4;
  static constexpr uint32_t kBytes = 64;

  const BothEnds& ends;
  uint8_t value = 0;

  uint8_t* sink(size_t i) const { return ends.buffer->data() + 4096 + 256 * i; }
  bool has_landed(size_t i) const {
    return std::atomic_ref<uint8_t>(*sink(i)).load() == static_cast<uint8_t>(value + i);
  }
  // Four reads at once, of what differs in every round.
  void post_reads(uint8_t round) {
    value = static_cast<uint8_t>(round * kCount);
    for (size_t i = 0; i < kCount; ++i) {
      std::memset(ends.buffer->data() + 256 * i, value + static_cast<int>(i), kBytes);
      ASSERT_EQ(
          post(ends.a.get(), {.opcode = IBV_WR_RDMA_READ,
                              .id = i,
                              .pieces = {{ends.buffer.get(), 4096 + 256 * i, kBytes}},
                              .remote = {ends.buffer->address() + 256 * i, ends.buffer->rkey()}}),
          0);
    }
  }
  // Polls until all are complete, in the order of their posts and with their bytes. How often one
  // was there before one in front of it.
  int overtaken() const {
    int count = 0;
    for (size_t done = 0; done < kCount;) {
      // The later one first: where it is there, the earlier one was not when it landed.
      for (size_t i = kCount; i-- > done + 1;)
        if (has_landed(i) && !has_landed(i - 1)) ++count;
      ibv_wc wc{};
      if (ibv_poll_cq(ends.cq.get(), 1, &wc) != 1) continue;
      EXPECT_EQ(wc.status, IBV_WC_SUCCESS);
      EXPECT_EQ(wc.wr_id, done);
      EXPECT_TRUE(has_landed(done));
      ++done;
    }
    return count;
  }
};

TEST(SoftLate, Reads_under_way_at_once_land_in_any_order_and_complete_in_theirs) {
  Crew crew({[](Post&) {
    const BothEnds ends;
    Answers answers{ends};
    int overtaken = 0;
    for (uint8_t round = 1; round <= 50; ++round) {
      ASSERT_NO_FATAL_FAILURE(answers.post_reads(round));
      overtaken += answers.overtaken();
    }
    EXPECT_GT(overtaken, 0);
  }});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
}

TEST(SoftLate, Where_one_read_may_be_under_way_they_land_in_order) {
  Crew crew({[](Post&) {
    const BothEnds ends({.reads_in_flight = 1});
    Answers answers{ends};
    for (uint8_t round = 1; round <= 20; ++round) {
      ASSERT_NO_FATAL_FAILURE(answers.post_reads(round));
      ASSERT_EQ(answers.overtaken(), 0);
    }
  }});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
}

TEST(SoftLate, Atomics_under_way_at_once_take_effect_in_order) {
  Crew crew({[](Post&) {
    const BothEnds ends;
    const auto& [hca, cq, a, b, buffer] = ends;
    for (uint64_t round = 0; round < 20; ++round) {
      for (uint64_t i = 0; i < 4; ++i)
        ASSERT_EQ(post(a.get(), {.opcode = IBV_WR_ATOMIC_FETCH_AND_ADD,
                                 .id = i,
                                 .pieces = {{buffer.get(), 4096 + 256 * i, 8}},
                                 .remote = {buffer->address(), buffer->rkey()},
                                 .compare_add = 1}),
                  0);
      for (uint64_t i = 0; i < 4; ++i) {
        expect_completion(cq.get(), i);
        uint64_t before = 0;
        std::memcpy(&before, buffer->data() + 4096 + 256 * i, sizeof before);
        ASSERT_EQ(before, 4 * round + i);
      }
    }
  }});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
}

TEST(SoftLate, An_answer_does_not_land_in_memory_that_was_deregistered) {
  Crew crew({[](Post&) {
    BothEnds ends;
    const auto sink = ends.hca.make_buffer(4096);
    for (uint64_t i = 0; i < 4; ++i)
      ASSERT_EQ(
          post(ends.a.get(),
               {.opcode = IBV_WR_RDMA_READ,
                .id = i,
                .pieces = {{i < 2 ? ends.buffer.get() : sink.get(), 4096 * (i < 2) + 64 * i, 64}},
                .remote = {ends.buffer->address(), ends.buffer->rkey()}}),
          0);
    // Executes some of it; how much is the device's business.
    ibv_wc wc{};
    int done = ibv_poll_cq(ends.cq.get(), 1, &wc);
    ASSERT_EQ(sink->deregister(), 0);
    const std::vector<uint8_t> then(sink->data(), sink->data() + 4096);
    // Expect: what was complete before is; then one error, and a flush of the rest.
    std::vector<ibv_wc_status> statuses;
    for (; done < 4; ++done) statuses.push_back(wait_completion(ends.cq.get()).status);
    size_t i = 0;
    while (i < statuses.size() && statuses[i] == IBV_WC_SUCCESS) ++i;
    for (size_t j = i; j < statuses.size(); ++j)
      EXPECT_EQ(statuses[j], j == i ? IBV_WC_LOC_PROT_ERR : IBV_WC_WR_FLUSH_ERR);
    EXPECT_EQ(std::vector<uint8_t>(sink->data(), sink->data() + 4096), then);
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
