// One side of a connection through the net plugin, in a process of its own.
//
// Threads: one.
#pragma once

#include <gtest/gtest.h>

#include <vector>

#include "base/units.hpp"
#include "tests/support/crew.hpp"
#include "tests/support/nccl_driver.hpp"

namespace noria::test {

// A side of a connection, with memory for one message.
struct NcclEnd {
  static constexpr size_t kBytes = 1_MiB;

  explicit NcclEnd(int version) : communicator(version) {}

  Net& net() { return *communicator.net; }
  void connect_to(Wire& peer) {
    auto handle = peer.recv<NetHandle>();
    ASSERT_NE(comm = connect(net(), communicator.context, &handle), nullptr);
    add_memory();
  }
  void accept_from(Wire& peer) {
    NetHandle handle{};
    void* listener = nullptr;
    ASSERT_EQ(net().listen(communicator.context, 0, handle.data(), &listener), Result::success);
    peer.send(handle);
    ASSERT_NE(comm = accept(net(), listener), nullptr);
    EXPECT_EQ(net().close_listen(listener), Result::success);
    add_memory();
  }
  void add_memory() {
    ASSERT_EQ(
        net().reg_mr(comm, memory.data(), memory.size(), plugin::abi::kPointerHost, &registered),
        Result::success);
  }

  std::vector<std::byte> memory = std::vector<std::byte>(kBytes);
  Communicator communicator;
  void* comm = nullptr;
  void* registered = nullptr;
};

}  // namespace noria::test
