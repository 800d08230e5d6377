// libnccl-net-noria.so when something breaks: nothing waits for a peer, and what NCCL is told is
// true.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <cstring>

#include "tests/support/nccl_end.hpp"
#include "tests/support/nccl_pair.hpp"
#include "tests/support/ranks.hpp"
#include "verbs/transport/wire.hpp"

namespace noria::test {
namespace {

class NcclNetFault : public testing::TestWithParam<int> {
 protected:
  static void SetUpTestSuite() { setenv("NORIA_SOFT", "1", 1); }
};

Result begin(NcclEnd& end, bool is_sender, size_t bytes, void** request) {
  return is_sender ? end.net().isend(end.comm, end.memory.data(), bytes, end.registered, request)
                   : end.net().irecv(end.comm, end.memory.data(), bytes, end.registered, request);
}

// One message of eight bytes after the other; what ended that, or success after 30 s.
Result until_it_fails(NcclEnd& end, bool is_sender) {
  Result result = Result::success;
  const Nanoseconds deadline = now_ns() + 30_s;
  void* request = nullptr;
  while (result == Result::success && now_ns() < deadline) {
    int is_done = 0;
    if (request == nullptr)
      result = begin(end, is_sender, 8, &request);
    else if ((result = end.net().test(request, &is_done, nullptr)) == Result::success &&
             is_done != 0)
      request = nullptr;
  }
  return result;
}

TEST_P(NcclNetFault, A_close_with_requests_in_flight_does_not_wait_for_the_peer) {
  const int version = GetParam();
  run_pair(
      [&](Post& post) {
        NcclEnd end(version);
        ASSERT_NO_FATAL_FAILURE(end.connect_to(post.peer));
        post.peer.meet();
        // The peer is stopped for good in meet(), with eight receives posted and one message here.
        void* request = nullptr;
        while (request == nullptr)
          ASSERT_EQ(end.net().isend(end.comm, end.memory.data(), NcclEnd::kBytes, end.registered,
                                    &request),
                    Result::success);
        EXPECT_EQ(end.net().dereg_mr(end.comm, end.registered), Result::success);
        EXPECT_EQ(end.net().close_send(end.comm), Result::success);
        post.peer.meet();
      },
      [&](Post& post) {
        NcclEnd end(version);
        ASSERT_NO_FATAL_FAILURE(end.accept_from(post.peer));
        for (int i = 0; i < 8; ++i) {
          void* request = kStale;
          ASSERT_EQ(end.net().irecv(end.comm, end.memory.data(), NcclEnd::kBytes, end.registered,
                                    &request),
                    Result::success);
          ASSERT_NE(request, nullptr);
        }
        post.peer.meet();
        post.peer.meet();
        EXPECT_EQ(end.net().dereg_mr(end.comm, end.registered), Result::success);
        EXPECT_EQ(end.net().close_recv(end.comm), Result::success);
      });
}

TEST_P(NcclNetFault, A_peer_that_was_killed_is_a_remote_error_on_either_side_told_once) {
  const int version = GetParam();
  for (const bool is_sender_left : {true, false}) {
    RankCrew crew(2, [&](int32_t rank, Wire& parent) {
      NcclEnd end(version);
      const bool is_sender = (rank == 0) == is_sender_left;
      if (is_sender) {
        ASSERT_NO_FATAL_FAILURE(end.connect_to(parent));
      } else {
        ASSERT_NO_FATAL_FAILURE(end.accept_from(parent));
      }
      parent.meet();
      if (rank == 1) pause();  // killed here
      parent.meet();
      forget_logged_lines();
      // No request is in flight, or one that never ends.  Expect: an error either way.
      Result result = Result::success;
      const Nanoseconds deadline = now_ns() + 30_s;
      void* request = nullptr;
      while (result == Result::success && now_ns() < deadline) {
        if (is_sender || request == nullptr) {
          result = begin(end, is_sender, NcclEnd::kBytes, &request);
        } else {
          int is_done = 0;
          result = end.net().test(request, &is_done, nullptr);
          EXPECT_EQ(is_done, 0);
        }
      }
      EXPECT_EQ(result, Result::remote_error);
      const std::string first = last_warning();
      EXPECT_TRUE(contains(first, "the peer")) << first;
      // Expect: the same again, in silence.
      forget_logged_lines();
      request = kStale;
      EXPECT_EQ(begin(end, is_sender, 1, &request), Result::remote_error);
      EXPECT_EQ(request, nullptr);
      EXPECT_EQ(last_warning(), "");
      EXPECT_EQ(end.net().dereg_mr(end.comm, end.registered), Result::success);
      EXPECT_EQ(is_sender ? end.net().close_send(end.comm) : end.net().close_recv(end.comm),
                Result::success);
    });
    const int32_t listener = is_sender_left ? 1 : 0;
    crew.wire(1 - listener).send(crew.wire(listener).recv<NetHandle>());
    crew.wire(0).meet();
    crew.wire(1).meet();
    crew.kill(1, SIGKILL);
    EXPECT_EQ(crew.wait(1).signal, SIGKILL);
    crew.wire(0).meet();
    crew.expect_success({1});
  }
}

TEST_P(NcclNetFault, A_send_longer_than_its_receive_is_an_error_and_touches_nothing_behind) {
  const int version = GetParam();
  run_pair(
      [&](Post& post) {
        NcclEnd end(version);
        ASSERT_NO_FATAL_FAILURE(end.connect_to(post.peer));
        void* request = nullptr;
        while (request == nullptr)
          ASSERT_EQ(end.net().isend(end.comm, end.memory.data(), 101, end.registered, &request),
                    Result::success);
        int is_done = 0;
        EXPECT_EQ(end.net().test(request, &is_done, nullptr), Result::invalid_usage);
        EXPECT_TRUE(contains(last_warning(), "more bytes")) << last_warning();
        post.peer.meet();
        EXPECT_EQ(end.net().close_send(end.comm), Result::success);
      },
      [&](Post& post) {
        NcclEnd end(version);
        ASSERT_NO_FATAL_FAILURE(end.accept_from(post.peer));
        std::fill(end.memory.begin(), end.memory.end(), std::byte{0xee});
        void* request = nullptr;
        ASSERT_EQ(end.net().irecv(end.comm, end.memory.data(), 100, end.registered, &request),
                  Result::success);
        post.peer.meet();
        EXPECT_EQ(std::count(end.memory.begin(), end.memory.end(), std::byte{0xee}),
                  static_cast<ptrdiff_t>(NcclEnd::kBytes));
        EXPECT_EQ(end.net().close_recv(end.comm), Result::success);
      });
}

// The sender's device fails.  Expect: what NCCL hears of the connection is one line, with the
// device and what to do, beside the one that the device may have of its own.
TEST_P(NcclNetFault, A_device_that_is_lost_is_told_in_one_line) {
  const int version = GetParam();
  run_pair(
      [&](Post& post) {
        setenv("NORIA_SOFT_FAULTS", "port=*: after msgs=20 do fatal", 1);
        NcclEnd end(version);
        ASSERT_NO_FATAL_FAILURE(end.connect_to(post.peer));
        forget_logged_lines();
        EXPECT_EQ(until_it_fails(end, true), Result::system_error);
        EXPECT_TRUE(contains(last_warning(), "the device is lost")) << last_warning();
        end.net().dereg_mr(end.comm, end.registered);
        EXPECT_EQ(end.net().close_send(end.comm), Result::success);
        std::vector<std::string> lines = logged_lines();
        std::erase_if(lines,
                      [](const std::string& line) { return contains(line, "noria0 reported: "); });
        EXPECT_EQ(lines.size(), 1u) << testing::PrintToString(lines);
        post.peer.meet();
      },
      [&](Post& post) {
        NcclEnd end(version);
        ASSERT_NO_FATAL_FAILURE(end.accept_from(post.peer));
        // Expect: the peer's words for it.
        EXPECT_EQ(until_it_fails(end, false), Result::remote_error);
        EXPECT_TRUE(contains(last_warning(), "the device is lost")) << last_warning();
        post.peer.meet();
        EXPECT_EQ(end.net().close_recv(end.comm), Result::success);
      });
}

// Where it listens: on the loopback, by an IPv4 address.
transport::wire::Handle told_in(const NetHandle& handle) {
  transport::wire::Handle told;
  std::memcpy(static_cast<void*>(&told), handle.data(), sizeof told);
  return told;
}
sockaddr_in address_in(const NetHandle& handle) {
  const transport::wire::Handle told = told_in(handle);
  EXPECT_EQ(told.family, 4);
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(told.port)};
  std::memcpy(&address.sin_addr, told.address.data(), sizeof address.sin_addr);
  return address;
}

TEST_P(NcclNetFault, Two_hundred_strangers_at_a_listener_change_nothing) {
  const int version = GetParam();
  run_ranks(1, [version](int32_t, Wire&) {
    const Communicator communicator(version);
    Net& net = *communicator.net;
    NetHandle handle{};
    void* listener = nullptr;
    ASSERT_EQ(net.listen(communicator.context, 0, handle.data(), &listener), Result::success);
    const sockaddr_in address = address_in(handle);

    // Some say nothing, some rubbish, some half a greeting; all stay.
    std::vector<int> strangers;
    const transport::wire::Hello hello;
    for (int i = 0; i < 200; ++i) {
      const int stranger = strangers.emplace_back(::socket(AF_INET, SOCK_STREAM, 0));
      ASSERT_EQ(::connect(stranger, reinterpret_cast<const sockaddr*>(&address), sizeof address),
                0);
      const void* const words = i % 3 == 1 ? static_cast<const void*>("rubbish") : &hello;
      if (i % 3 != 0) {
        ASSERT_GT(::send(stranger, words, i % 3 == 1 ? 7 : 100, MSG_NOSIGNAL), 0);
      }
      void* comm = kStale;
      ASSERT_EQ(net.accept(listener, &comm), Result::success);
      ASSERT_EQ(comm, nullptr);
    }
    // Expect: the right peer connects, and a message arrives; nobody is told of anything.
    const Ends ends = come_together(net, communicator.context, &handle, listener);
    ASSERT_NE(ends.sending, nullptr);
    ASSERT_NE(ends.receiving, nullptr);
    void* received = nullptr;
    void* sent = nullptr;
    ASSERT_EQ(net.irecv(ends.receiving, nullptr, 0, nullptr, &received), Result::success);
    ASSERT_EQ(net.isend(ends.sending, nullptr, 0, nullptr, &sent), Result::success);
    EXPECT_EQ(finish(net, sent), 0);
    EXPECT_EQ(finish(net, received), 0);
    EXPECT_EQ(last_warning(), "");
    EXPECT_EQ(net.close_listen(listener), Result::success);
    close_both(net, ends);
    for (const int stranger : strangers) ::close(stranger);
  });
}

TEST_P(NcclNetFault, Advice_on_tuner_tables_is_given_where_they_are_the_cause_and_not_else) {
  const int version = GetParam();
  run_ranks(1, [version](int32_t, Wire&) {
    const Communicator communicator(version);
    Net& net = *communicator.net;
    for (const bool is_version : {true, false}) {
      NetHandle handle{};
      void* listener = nullptr;
      ASSERT_EQ(net.listen(communicator.context, 0, handle.data(), &listener), Result::success);
      const sockaddr_in address = address_in(handle);
      transport::wire::Hello hello;
      hello.token = told_in(handle).token;
      hello.provider_kind = told_in(handle).provider_kind;
      hello.fingerprint = 1;
      if (is_version) ++hello.control.version;
      const int peer = ::socket(AF_INET, SOCK_STREAM, 0);
      ASSERT_EQ(::connect(peer, reinterpret_cast<const sockaddr*>(&address), sizeof address), 0);
      ASSERT_EQ(::send(peer, &hello, sizeof hello, MSG_NOSIGNAL), ssize_t{sizeof hello});
      Result accepted = Result::success;
      const Nanoseconds deadline = now_ns() + 30_s;
      for (void* comm = nullptr; accepted == Result::success && now_ns() < deadline;)
        accepted = net.accept(listener, &comm);
      EXPECT_EQ(accepted, Result::invalid_usage);
      EXPECT_TRUE(contains(last_warning(), is_version ? "wire versions" : "fingerprints"))
          << last_warning();
      EXPECT_EQ(contains(last_warning(), "NORIA_TUNER"), !is_version) << last_warning();
      ::close(peer);
      EXPECT_EQ(net.close_listen(listener), Result::success);
    }
  });
}

// In this version NCCL hands its communicator's context to every call that makes something.
TEST(NcclNetCalls, That_come_without_what_they_need_are_refused_in_words_and_make_nothing) {
  setenv("NORIA_SOFT", "1", 1);
  run_ranks(1, [](int32_t, Wire&) {
    const NetLibrary library;
    const auto early = library.net(kNewestVersion);
    const auto refused = [](Result result, const std::string& words) {
      EXPECT_NE(result, Result::success) << words;
      EXPECT_TRUE(contains(last_warning(), words)) << last_warning();
      forget_logged_lines();
    };
    EXPECT_NE(early->init(nullptr), Result::success);
    refused(early->init(nullptr), "context is NULL");
    int index = 0;
    const int parts[] = {0};
    refused(early->make_virtual(&index, parts, 1), "init() comes first");

    const Communicator communicator(kNewestVersion);
    Net& net = *communicator.net;
    NetHandle handle{};
    void* comm = kStale;
    refused(net.listen(kStale, 0, handle.data(), &comm), "init() comes first");
    EXPECT_EQ(comm, nullptr);
    refused(net.listen(communicator.context, 7, handle.data(), &comm), "there is no device 7");
    refused(net.listen(communicator.context, 0, nullptr, &comm), "an argument is NULL");
    comm = kStale;
    refused(net.connect(kStale, 0, handle.data(), &comm), "init() comes first");
    EXPECT_EQ(comm, nullptr);
    refused(net.connect(communicator.context, 0, handle.data(), &comm), "none of ours");
    refused(net.connect(communicator.context, 0, nullptr, &comm), "an argument is NULL");
    refused(net.accept(kStale, &comm), "not a listener of ours");
    refused(net.accept(kStale, nullptr), "recv_comm is NULL");
    refused(net.finalize(kStale), "no context of ours");
    refused(net.devices(nullptr), "count is NULL");
  });
}

INSTANTIATE_TEST_SUITE_P(Versions, NcclNetFault,
                         testing::Values(kOldestVersion, 10, kNewestVersion),
                         [](const auto& version) { return "v" + std::to_string(version.param); });

}  // namespace
}  // namespace noria::test
