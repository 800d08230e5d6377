// How long libnccl-net-noria.so waits for a slow peer: for ever. Hours pass at once here: this
// program puts its own clock before libc's, and sets it forward.

#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>

#include "tests/support/nccl_pair.hpp"

namespace noria::test {
namespace {

// Seconds that the clock is ahead. Threads of the device read it too.
std::atomic<int64_t> ahead_s{0};

}  // namespace
}  // namespace noria::test

extern "C" [[gnu::visibility("default")]] int clock_gettime(clockid_t clock,
                                                            timespec* time) noexcept {
  const auto failure = static_cast<int>(syscall(SYS_clock_gettime, clock, time));
  if (failure == 0) time->tv_sec += noria::test::ahead_s.load(std::memory_order_relaxed);
  return failure;
}

namespace noria::test {
namespace {

class NcclNetPatience : public NcclNet {
 protected:
  // Time passes, and everybody has looked at the clock since. Expect: nobody is told of anything.
  static void let_hours_pass(const std::function<void()>& look) {
    forget_logged_lines();
    for (int hour = 0; hour < 24; ++hour) {
      ahead_s += 3600;
      for (int i = 0; i < 20; ++i) look();
    }
    EXPECT_EQ(last_warning(), "");
  }
};

TEST_P(NcclNetPatience, A_connection_under_way_waits_a_day_for_the_peer_to_accept) {
  alone([] {
    const Nanoseconds begin = now_ns();
    const Communicator communicator(GetParam());
    Net& net = *communicator.net;
    NetHandle handle{};
    void* listener = nullptr;
    ASSERT_EQ(net.listen(communicator.context, 0, handle.data(), &listener), Result::success);
    const auto expect_not_yet = [&] {
      void* comm = kStale;
      ASSERT_EQ(net.connect(communicator.context, 0, handle.data(), &comm), Result::success)
          << last_warning();
      ASSERT_EQ(comm, nullptr);
    };
    expect_not_yet();
    ASSERT_NO_FATAL_FAILURE(let_hours_pass(expect_not_yet));
    EXPECT_GT(now_ns() - begin, 23 * 3600 * 1_s) << "the clock is libc's own";
    const Ends ends = come_together(net, communicator.context, &handle, listener);
    ASSERT_TRUE(ends.sending != nullptr && ends.receiving != nullptr);

    // The same of a send without a receive, and of a receive without a send.
    void* request = nullptr;
    const auto expect_no_room = [&] {
      ASSERT_EQ(net.isend(ends.sending, nullptr, 0, nullptr, &request), Result::success)
          << last_warning();
      ASSERT_EQ(request, nullptr);
    };
    ASSERT_NO_FATAL_FAILURE(let_hours_pass(expect_no_room));
    void* received = nullptr;
    ASSERT_EQ(net.irecv(ends.receiving, nullptr, 0, nullptr, &received), Result::success);
    const auto expect_not_done = [&] {
      int is_done = -1;
      ASSERT_EQ(net.test(received, &is_done, nullptr), Result::success) << last_warning();
      ASSERT_EQ(is_done, 0);
    };
    ASSERT_NO_FATAL_FAILURE(let_hours_pass(expect_not_done));
    ASSERT_EQ(net.isend(ends.sending, nullptr, 0, nullptr, &request), Result::success);
    ASSERT_NE(request, nullptr);
    EXPECT_EQ(finish(net, request), 0);
    EXPECT_EQ(finish(net, received), 0);
    EXPECT_EQ(net.close_listen(listener), Result::success);
    close_both(net, ends);
  });
}

TEST_P(NcclNetPatience, Only_a_closed_socket_ends_a_connection_under_way) {
  alone([] {
    const Communicator communicator(GetParam());
    Net& net = *communicator.net;
    NetHandle handle{};
    void* listener = nullptr;
    ASSERT_EQ(net.listen(communicator.context, 0, handle.data(), &listener), Result::success);
    void* comm = kStale;
    ASSERT_EQ(net.connect(communicator.context, 0, handle.data(), &comm), Result::success);
    ASSERT_EQ(comm, nullptr);
    EXPECT_EQ(net.close_listen(listener), Result::success);
    Result result = Result::success;
    const Nanoseconds deadline = now_ns() + 30_s;
    while (result == Result::success && now_ns() < deadline) {
      comm = kStale;
      result = net.connect(communicator.context, 0, handle.data(), &comm);
      EXPECT_EQ(comm, nullptr);
    }
    EXPECT_EQ(result, Result::remote_error);
    EXPECT_TRUE(contains(last_warning(), "connecting to the peer")) << last_warning();
  });
}

INSTANTIATE_TEST_SUITE_P(Versions, NcclNetPatience, testing::Values(kOldestVersion, kNewestVersion),
                         [](const auto& version) { return "v" + std::to_string(version.param); });

}  // namespace
}  // namespace noria::test
