// Fixture of tests that drive the net plugin, of the version that is the test's parameter, in
// processes of their own.
//
// Threads: as each test says.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <functional>

#include "base/clock.hpp"
#include "tests/support/nccl_driver.hpp"
#include "tests/support/ranks.hpp"

namespace noria::test {

// Both ends of a connection that one thread makes.
struct Ends {
  void* sending = nullptr;
  void* receiving = nullptr;
};

// Drives both in turn until they are connected; an end is null where that takes 30 s.
inline Ends come_together(Net& net, void* context, NetHandle* handle, void* listener,
                          int device = 0) {
  Ends ends;
  const Nanoseconds deadline = now_ns() + 30_s;
  while ((ends.sending == nullptr || ends.receiving == nullptr) && now_ns() < deadline) {
    if (ends.sending == nullptr) {
      EXPECT_EQ(net.connect(context, device, handle->data(), &ends.sending), Result::success)
          << last_warning();
    }
    if (ends.receiving == nullptr) {
      EXPECT_EQ(net.accept(listener, &ends.receiving), Result::success) << last_warning();
    }
  }
  return ends;
}

inline void connect_to_itself(Net& net, void* context, Ends* ends, int device = 0) {
  NetHandle handle{};
  void* listener = nullptr;
  ASSERT_EQ(net.listen(context, device, handle.data(), &listener), Result::success)
      << last_warning();
  *ends = come_together(net, context, &handle, listener, device);
  ASSERT_TRUE(ends->sending != nullptr && ends->receiving != nullptr) << "not after 30 s";
  EXPECT_EQ(net.close_listen(listener), Result::success);
}

inline void close_both(Net& net, const Ends& ends) {
  EXPECT_EQ(net.close_send(ends.sending), Result::success);
  EXPECT_EQ(net.close_recv(ends.receiving), Result::success);
}

class NcclNet : public testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() { setenv("NORIA_SOFT", "1", 1); }

  void alone(const std::function<void()>& body) {
    run_ranks(1, [&](int32_t, Wire&) { body(); });
  }
  // With a connection of the process with itself, which is closed when `body` returns.
  void connected(const std::function<void(Net&, const Ends&)>& body) {
    alone([&] {
      const Communicator communicator(GetParam());
      Ends ends;
      ASSERT_NO_FATAL_FAILURE(connect_to_itself(*communicator.net, communicator.context, &ends));
      body(*communicator.net, ends);
      close_both(*communicator.net, ends);
    });
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
