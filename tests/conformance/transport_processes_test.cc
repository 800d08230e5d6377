// The transport between two processes, as it is used.

#include <array>

#include "base/units.hpp"
#include "tests/support/transport_end.hpp"

namespace noria::transport {
namespace {

using test::Post;
using test::run_pair;
using test::TransportEnd;

TEST(Transport_processes, Carry_messages_of_all_sizes) {
  const auto sizes_of = [](const TransportEnd& end) {
    const uint64_t longest = test::long_message(*end.provider);
    return std::array<uint64_t, 8>{0, 1, 64, 4097, 64_KiB, 1_MiB + 5, longest / 8, longest};
  };
  const auto sender = [&](Post& post) {
    TransportEnd end;
    ASSERT_NO_FATAL_FAILURE(end.connect(post.peer, "the receiver"));
    const auto sizes = sizes_of(end);
    std::vector<std::byte> memory(sizes.back());
    auto region = end.domain->register_region(memory.data(), memory.size());
    ASSERT_TRUE(region.is_ok());
    for (const uint64_t bytes : sizes) {
      test::paint(memory.data(), bytes, bytes);
      Request* sent = nullptr;
      ASSERT_TRUE(end.poll_until([&] {
        if (sent == nullptr) sent = end.send->try_send(*region, 0, bytes);
        return sent != nullptr && sent->is_done();
      })) << end.send->describe();
      ASSERT_TRUE(sent->status().is_ok()) << end.send->describe();
      end.send->release(sent);
    }
    post.peer.meet();
  };
  const auto receiver = [&](Post& post) {
    TransportEnd end;
    ASSERT_NO_FATAL_FAILURE(end.listen(post.peer, "the sender"));
    const auto sizes = sizes_of(end);
    std::vector<std::byte> memory(sizes.back());
    auto region = end.domain->register_region(memory.data(), memory.size());
    ASSERT_TRUE(region.is_ok());
    for (const uint64_t bytes : sizes) {
      Request* received = end.recv->try_recv(*region, 0, memory.size());
      ASSERT_NE(received, nullptr);
      ASSERT_TRUE(end.poll_until([&] { return received->is_done(); })) << end.recv->describe();
      ASSERT_TRUE(received->status().is_ok()) << end.recv->describe();
      EXPECT_EQ(received->bytes(), bytes);
      EXPECT_EQ(test::first_wrong(memory.data(), bytes, bytes), bytes);
      end.recv->release(received);
    }
    post.peer.meet();
  };
  run_pair(sender, receiver);
}

TEST(Transport_processes, Reads_from_a_peer_that_never_polls) {
  static constexpr uint64_t kBytes = 16_MiB;
  const auto exposer = [](Post& post) {
    TransportEnd end;
    ASSERT_NO_FATAL_FAILURE(end.connect(post.peer, "the reader"));
    std::vector<std::byte> plain(kBytes);
    auto exposed = end.domain->register_region(plain.data(), kBytes);
    auto mapped = end.domain->allocate(kBytes);
    ASSERT_TRUE(exposed.is_ok() && mapped.is_ok());
    test::paint(plain.data(), kBytes, 1);
    test::paint(mapped->base(), kBytes, 2);
    post.peer.send(exposed->remote());
    post.peer.send(mapped->remote());
    post.peer.meet();  // sleeps; nobody polls this domain
  };
  const auto reader = [](Post& post) {
    TransportEnd end;
    ASSERT_NO_FATAL_FAILURE(end.listen(post.peer, "the exposer"));
    auto local = end.domain->allocate(kBytes);
    ASSERT_TRUE(local.is_ok());
    for (const uint64_t seed : {1u, 2u}) {
      const auto remote = post.peer.recv<RemoteRegion>();
      Request* read = end.recv->try_read(*local, 0, remote, 0, kBytes);
      ASSERT_NE(read, nullptr);
      ASSERT_TRUE(end.poll_until([&] { return read->is_done(); }));
      EXPECT_TRUE(read->status().is_ok()) << end.recv->describe();
      EXPECT_EQ(test::first_wrong(local->base(), kBytes, seed), kBytes);
      end.recv->release(read);
    }
    post.peer.meet();
  };
  run_pair(exposer, reader);
}

TEST(Transport_processes, A_sleeping_receiver_is_woken_by_every_message) {
  // Each message is sent only after the one before was received: no wake-up may be lost.
  static constexpr int kRounds = 200;
  const auto sender = [](Post& post) {
    TransportEnd end;
    ASSERT_NO_FATAL_FAILURE(end.connect(post.peer, "the sleeper"));
    for (int i = 0; i < kRounds; ++i) {
      Request* sent = nullptr;
      ASSERT_TRUE(end.poll_until([&] {
        if (sent == nullptr) sent = end.send->try_send_inline(&i, sizeof i);
        return sent != nullptr && sent->is_done();
      }));
      end.send->release(sent);
      post.peer.meet();
    }
  };
  const auto sleeper = [](Post& post) {
    TransportEnd end;
    ASSERT_NO_FATAL_FAILURE(end.listen(post.peer, "the sender"));
    auto region = end.domain->allocate(64);
    ASSERT_TRUE(region.is_ok());
    for (int i = 0; i < kRounds; ++i) {
      Request* received = end.recv->try_recv(*region, 0, 64);
      ASSERT_NE(received, nullptr);
      const Nanoseconds deadline = now_ns() + test::kPatience;
      while (!received->is_done() && now_ns() < deadline) {
        ASSERT_TRUE(end.domain->arm_and_wait(deadline, -1).is_ok());
        end.domain->poll();
      }
      ASSERT_TRUE(received->is_done());
      int value = -1;
      std::memcpy(&value, region->base(), sizeof value);
      EXPECT_EQ(value, i);
      end.recv->release(received);
      post.peer.meet();
    }
  };
  run_pair(sender, sleeper);
}

}  // namespace
}  // namespace noria::transport
