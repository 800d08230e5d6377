// Fixture of tests that drive the net plugin, of the version that is the test's parameter, in
// processes of their own.
//
// Threads: as each test says.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "tests/support/nccl_driver.hpp"
#include "tests/support/ranks.hpp"

namespace noria::test {

// Both ends of a connection that one thread makes.
struct Ends {
  void* sending = nullptr;
  void* receiving = nullptr;
};
inline Ends come_together(const Communicator& communicator, NetHandle* handle, void* listener) {
  Ends ends;
  for (int i = 0; i < 1'000'000 && (ends.sending == nullptr || ends.receiving == nullptr); ++i) {
    if (ends.sending == nullptr) {
      EXPECT_EQ(communicator.net->connect(communicator.context, 0, handle->data(), &ends.sending),
                Result::success);
    }
    if (ends.receiving == nullptr) {
      EXPECT_EQ(communicator.net->accept(listener, &ends.receiving), Result::success);
    }
  }
  return ends;
}

class NcclNet : public testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() { setenv("NORIA_SOFT", "1", 1); }

  void alone(const std::function<void()>& body) {
    run_ranks(1, [&](int32_t, Wire&) { body(); });
  }
  // The receiver listens and sends the handle; both sides then hold a comm.
  void pair(const std::function<void(Communicator&, void*, Wire&)>& sender,
            const std::function<void(Communicator&, void*, Wire&)>& receiver) {
    const int version = GetParam();
    run_pair(
        [&](Post& post) {
          Communicator communicator(version);
          auto handle = post.peer.recv<NetHandle>();
          void* const comm = connect(*communicator.net, communicator.context, &handle);
          ASSERT_NE(comm, nullptr);
          sender(communicator, comm, post.peer);
        },
        [&](Post& post) {
          Communicator communicator(version);
          Net& net = *communicator.net;
          NetHandle handle{};
          void* listener = nullptr;
          ASSERT_EQ(net.listen(communicator.context, 0, handle.data(), &listener), Result::success);
          post.peer.send(handle);
          void* const comm = accept(net, listener);
          ASSERT_NE(comm, nullptr);
          // NCCL closes the listener before it uses what it accepted.
          EXPECT_EQ(net.close_listen(listener), Result::success);
          receiver(communicator, comm, post.peer);
        });
  }
};

}  // namespace noria::test
