// After dereg_mr, a reset, an error or a destruction has returned, no byte of the peer lands.

#include <atomic>
#include <string>

#include "tests/support/verbs_fixture.hpp"

namespace noria::test {
namespace {

enum class Fence { dereg, reset, error, destroy };

struct Case {
  Fence fence;
  Memory memory;
  uint32_t bytes;
  uint64_t list = 1;  // requests a post
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  static constexpr const char* kFences[] = {"dereg", "reset", "error", "destroy"};
  return std::string(kFences[static_cast<int>(info.param.fence)]) +
         (info.param.memory == Memory::plain ? "_plain_" : "_mapped_") +
         std::to_string(info.param.bytes) + (info.param.list > 1 ? "_lists" : "");
}

constexpr size_t kBytes = 1 << 20;
constexpr int kRounds = 15;

class SoftFence : public testing::TestWithParam<Case> {};
INSTANTIATE_TEST_SUITE_P(
    Each, SoftFence,
    testing::Values(
        Case{Fence::dereg, Memory::plain, 64}, Case{Fence::dereg, Memory::plain, kBytes},
        Case{Fence::dereg, Memory::plain, 8192, 16}, Case{Fence::dereg, Memory::mapped, 64},
        Case{Fence::dereg, Memory::mapped, kBytes}, Case{Fence::reset, Memory::plain, kBytes},
        Case{Fence::reset, Memory::plain, 8192, 16}, Case{Fence::reset, Memory::mapped, 4096},
        Case{Fence::error, Memory::plain, kBytes}, Case{Fence::error, Memory::mapped, kBytes},
        Case{Fence::destroy, Memory::plain, 65536}, Case{Fence::destroy, Memory::mapped, 65536}),
    name_of);

// Writes without pause until the first failure, then takes what was flushed.
void hammer(Post& p, const Case& c) {
  Hca hca;
  const auto cq = hca.make_cq();
  const auto buffer = hca.make_buffer(kBytes);
  std::memset(buffer->data(), 0xaa, kBytes);
  for (int round = 0; round < kRounds; ++round) {
    const auto qp = hca.make_qp(cq.get());
    // 4.096 us * 2^12, twice: long enough for a process that was not scheduled meanwhile.
    hca.connect(qp.get(), p.peer, {.ack_timeout = 12, .retry_count = 1});
    const auto remote = p.peer.recv<Region>();
    uint64_t posted = 0, done = 0;
    bool failed = false;
    const Nanoseconds deadline = now_ns() + 20_s;
    while (!failed || done < posted) {
      while (!failed && posted - done < 32) {
        std::vector<SendSpec> list;
        for (; list.size() < c.list; ++posted)
          list.push_back(
              {.opcode = IBV_WR_RDMA_WRITE,
               .id = posted,
               .pieces = {{buffer.get(), 0, c.bytes}},
               .remote = {remote.address + posted % 4 * (kBytes - c.bytes) / 4, remote.rkey}});
        ASSERT_EQ(post_list(qp.get(), list), 0);
      }
      const ibv_wc wc = wait_completion(cq.get());
      ASSERT_EQ(wc.wr_id, done++);
      if (!failed && wc.status != IBV_WC_SUCCESS) {
        EXPECT_EQ(wc.status,
                  c.fence == Fence::dereg ? IBV_WC_REM_ACCESS_ERR : IBV_WC_RETRY_EXC_ERR);
        failed = true;
      }
      ASSERT_LT(now_ns(), deadline) << "writes go on through the fence";
    }
    p.peer.meet();
  }
}

void put_up_fences(Post& p, const Case& c) {
  Hca hca;
  const auto cq = hca.make_cq();
  for (int round = 0; round < kRounds; ++round) {
    auto qp = hca.make_qp(cq.get());
    const auto buffer = hca.make_buffer(kBytes, c.memory);
    hca.connect(qp.get(), p.peer);
    p.peer.send(Region{buffer->address(), buffer->rkey()});
    // Under load: the last byte of a write has been seen, and more are on their way.
    std::atomic_ref<uint8_t> seen(buffer->data()[c.bytes - 1]);
    wait_until([&] { return seen.load(std::memory_order_relaxed) == 0xaa; }, "the first write");
    for (int i = 0; i < round * 500; ++i) is_empty(cq.get());

    switch (c.fence) {
      case Fence::dereg: ASSERT_EQ(buffer->deregister(), 0); break;
      case Fence::reset: ASSERT_EQ(to_state(qp.get(), IBV_QPS_RESET), 0); break;
      case Fence::error: ASSERT_EQ(to_state(qp.get(), IBV_QPS_ERR), 0); break;
      case Fence::destroy: qp.reset(); break;
    }
    // The memory is ours again.  Expect: it keeps what we put there until the writer has given up.
    std::memset(buffer->data(), 0x11, kBytes);
    p.peer.meet();
    size_t wrong = 0;
    while (wrong < kBytes && buffer->data()[wrong] == 0x11) ++wrong;
    ASSERT_EQ(wrong, kBytes) << "a byte landed after the fence, round " << round;
  }
}

TEST_P(SoftFence, Holds_under_load) {
  run_pair([](Post& p) { hammer(p, GetParam()); }, [](Post& p) { put_up_fences(p, GetParam()); });
}

// The reader's side of it: what a READ brings after its own region is gone must not land either.
TEST(SoftFenceLocal, A_queue_in_reset_no_longer_touches_local_memory) {
  run_pair([](Post& p) {
    Hca hca;
    const auto cq = hca.make_cq();
    const auto buffer = hca.make_buffer(kBytes);
    std::memset(buffer->data(), 0xaa, kBytes);
    for (int round = 0; round < kRounds; ++round) {
      const auto qp = hca.make_qp(cq.get());
      hca.connect(qp.get(), p.peer);
      const auto remote = p.peer.exchange(Region{buffer->address(), buffer->rkey()});
      const auto inbox = hca.make_buffer(kBytes);
      p.peer.meet();
      for (uint64_t i = 0; i < 8; ++i)
        ASSERT_EQ(post(qp.get(), {.opcode = IBV_WR_RDMA_READ,
                                  .id = i,
                                  .pieces = {{inbox.get(), 0, kBytes}},
                                  .remote = remote}),
                  0);
      ASSERT_EQ(to_state(qp.get(), IBV_QPS_RESET), 0);
      EXPECT_TRUE(is_empty(cq.get()));
      std::memset(inbox->data(), 0x11, kBytes);
      p.peer.meet();
      for (int i = 0; i < 1000; ++i) EXPECT_TRUE(is_empty(cq.get()));
      size_t wrong = 0;
      while (wrong < kBytes && inbox->data()[wrong] == 0x11) ++wrong;
      ASSERT_EQ(wrong, kBytes) << "round " << round;
      p.peer.meet();
    }
  });
}

}  // namespace
}  // namespace noria::test
