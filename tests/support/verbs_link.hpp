// Link: one reliable connection between the two processes of a pair, with one buffer on
// each side and the knowledge of the other's.
//
// Threads: one at a time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/support/verbs_fixture.hpp"

namespace noria::test {

struct LinkSpec {
  size_t bytes = 65536;
  Memory memory = Memory::plain;
  int access = kAllAccess;  // of the buffer
  QpSpec qp{};
  ConnectSpec connect{};
  bool sleeps = false;  // its completion queue has a channel
};

class Link {
 public:
  explicit Link(Post& post, const LinkSpec& spec = {});

  // From any state, on both sides at once.
  void reconnect();

  Region at(uint64_t offset) const { return {remote.address + offset, remote.rkey}; }
  std::vector<Piece> piece(uint64_t offset, uint32_t bytes) const {
    return {{buffer.get(), offset, bytes}};
  }
  // The first `bytes` of our buffer into the other's, or the other way round.
  SendSpec write(uint64_t id, uint32_t bytes, Region to) const {
    return {.opcode = IBV_WR_RDMA_WRITE, .id = id, .pieces = piece(0, bytes), .remote = to};
  }
  SendSpec read(uint64_t id, uint32_t bytes, Region from) const {
    return {.opcode = IBV_WR_RDMA_READ, .id = id, .pieces = piece(0, bytes), .remote = from};
  }
  ibv_qp_state state() const;

  // Of a link that sleeps.
  bool has_event(int timeout_ms) const;
  // Sleeps until an event comes and takes it; the test fails after 20 seconds.
  void take_event() const;
  // The next completion by the pattern of every sleeping program: poll, arm, poll, sleep.
  ibv_wc sleep_for_completion() const;

  LinkSpec spec;
  Hca hca;
  Owned<ibv_comp_channel> channel;
  Owned<ibv_cq> cq;
  Owned<ibv_qp> qp;
  std::unique_ptr<Buffer> buffer;
  Wire& wire;
  Region remote{};
};

inline std::string memory_name(const testing::TestParamInfo<Memory>& suite) {
  return suite.param == Memory::plain ? "plain" : "mapped";
}
// A suite whose tests run with memory of the process's own and with memory that peers map.
#define NORIA_TEST_BOTH_MEMORIES(Suite)                   \
  class Suite : public testing::TestWithParam<Memory> {}; \
  INSTANTIATE_TEST_SUITE_P(Each, Suite, testing::Values(Memory::plain, Memory::mapped), memory_name)

}  // namespace noria::test
