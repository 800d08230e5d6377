// Peers that die: in the handshake, with messages under way, and asleep.

#include <signal.h>

#include <cstdlib>
#include <optional>

#include "base/units.hpp"
#include "tests/support/transport_end.hpp"

namespace noria::transport {
namespace {

using test::Crew;
using test::Post;
using test::TransportEnd;

// The survivor of a Crew ends well; the other is killed when it says that it is time.
void run_and_kill(const test::Body& victim, const test::Body& survivor, int signal = SIGKILL) {
  Crew crew({victim, survivor});
  crew.wire(0).recv<uint8_t>();
  crew.kill(0, signal);
  const test::Ending ending = crew.wait(1);
  EXPECT_EQ(ending.exit_code, 0);
  EXPECT_FALSE(ending.timed_out);
}

// Says that it is time to be killed, and lives until then.
void await_the_end(Post& post) {
  post.parent.send(uint8_t{1});
  post.parent.recv<uint8_t>();
}

TEST(Transport_peer, Killed_in_the_handshake_is_reported_by_the_listener) {
  const auto victim = [](Post& post) {
    TransportEnd end;
    auto connector = Connector::start(*end.domain, post.peer.recv<Handle>(), {});
    ASSERT_TRUE(connector.is_ok());
    // Enough for the hello to leave, however busy the machine; nobody answers it yet.
    for (int i = 0; i < 10'000; ++i) ASSERT_TRUE((*connector)->try_finish().is_ok());
    post.peer.send(uint8_t{1});
    await_the_end(post);
  };
  const auto survivor = [](Post& post) {
    TransportEnd end;
    auto listener = Listener::open(*end.domain, "127.0.0.1", {.peer_name = "rank 1"});
    ASSERT_TRUE(listener.is_ok());
    post.peer.send((*listener)->handle());
    post.peer.recv<uint8_t>();
    Status failure;
    ASSERT_TRUE(end.poll_until([&] {
      auto accepted = (*listener)->try_accept();
      if (!accepted.is_ok()) failure = accepted.failure();
      return !accepted.is_ok();
    }));
    EXPECT_EQ(failure.code(), Code::peer_lost);
    listener->reset();
    end.domain.reset();
    EXPECT_EQ(end.provider->api().live_objects(), 0);
  };
  run_and_kill(victim, survivor);
}

TEST(Transport_peer, Killed_in_the_handshake_is_reported_by_the_connector) {
  const auto victim = [](Post& post) {
    TransportEnd end;
    auto listener = Listener::open(*end.domain, "127.0.0.1", {});
    ASSERT_TRUE(listener.is_ok());
    post.peer.send((*listener)->handle());
    await_the_end(post);  // never accepts
  };
  const auto survivor = [](Post& post) {
    TransportEnd end;
    auto connector =
        Connector::start(*end.domain, post.peer.recv<Handle>(), {.peer_name = "rank 1"});
    ASSERT_TRUE(connector.is_ok());
    Status failure;
    ASSERT_TRUE(end.poll_until([&] {
      auto finished = (*connector)->try_finish();
      if (!finished.is_ok()) failure = finished.failure();
      return !finished.is_ok();
    }));
    EXPECT_EQ(failure.code(), Code::peer_lost);
    EXPECT_NE((*connector)->describe().find("rank 1"), std::string::npos);
  };
  run_and_kill(victim, survivor);
}

TEST(Transport_peer, A_sender_killed_in_mid_message_fails_every_receive_and_is_named) {
  const auto victim = [](Post& post) {
    TransportEnd end;
    ASSERT_NO_FATAL_FAILURE(end.connect(post.peer, "the survivor"));
    auto region = end.domain->allocate(32_MiB);
    ASSERT_TRUE(region.is_ok());
    uint64_t sent = 0;
    // Sends without end; the kill comes wherever it comes.
    const Nanoseconds deadline = now_ns() + test::kPatience;
    while (now_ns() < deadline) {
      if (Request* request = end.send->try_send(*region, 0, 32_MiB); request != nullptr)
        if (++sent == 3) post.parent.send(uint8_t{1});
      end.domain->poll();
    }
  };
  const auto survivor = [](Post& post) {
    TransportEnd end;
    ASSERT_NO_FATAL_FAILURE(end.listen(post.peer, "rank 6"));
    auto region = end.domain->allocate(32_MiB);
    ASSERT_TRUE(region.is_ok());
    std::vector<Request*> received;
    ASSERT_TRUE(end.poll_until([&] {
      if (Request* request = end.recv->try_recv(*region, 0, 32_MiB); request != nullptr)
        received.push_back(request);
      return !end.recv->status().is_ok();
    }));
    EXPECT_GE(received.size(), 3u);
    // Expect: all are done, whole ones well, the others with the one status.
    bool is_failed = false;
    for (Request* request : received) {
      ASSERT_TRUE(request->is_done());
      if (request->status().is_ok()) {
        EXPECT_FALSE(is_failed);
        EXPECT_EQ(request->bytes(), 32_MiB);
      } else {
        is_failed = true;
        EXPECT_EQ(request->status().code(), Code::peer_lost);
      }
    }
    EXPECT_NE(end.recv->describe().find("rank 6"), std::string::npos);
    EXPECT_NE(end.recv->describe().find("process died"), std::string::npos) << end.recv->describe();
    end.recv.reset();
    *region = Region();
    end.domain.reset();
    EXPECT_EQ(end.provider->api().live_objects(), 0);
    EXPECT_EQ(end.provider->api().failed_closes(), 0u);
  };
  run_and_kill(victim, survivor);
}

TEST(Transport_peer, A_receiver_killed_in_mid_message_fails_every_send) {
  const auto victim = [](Post& post) {
    TransportEnd end;
    ASSERT_NO_FATAL_FAILURE(end.listen(post.peer, "the survivor"));
    std::vector<std::byte> memory(16_MiB);
    auto region = end.domain->register_region(memory.data(), memory.size());
    ASSERT_TRUE(region.is_ok());
    ASSERT_NE(end.recv->try_recv(*region, 0, 16_MiB), nullptr);
    ASSERT_NE(end.recv->try_recv(*region, 0, 16_MiB), nullptr);
    await_the_end(post);
  };
  const auto survivor = [](Post& post) {
    TransportEnd end;
    ASSERT_NO_FATAL_FAILURE(end.connect(post.peer, "rank 2"));
    auto region = end.domain->allocate(16_MiB);
    ASSERT_TRUE(region.is_ok());
    std::vector<Request*> sent;
    ASSERT_TRUE(end.poll_until([&] {
      if (Request* request = end.send->try_send(*region, 0, 16_MiB); request != nullptr)
        sent.push_back(request);
      return !end.send->status().is_ok();
    }));
    for (Request* request : sent) EXPECT_TRUE(request->is_done());
    EXPECT_NE(end.send->describe().find("rank 2"), std::string::npos) << end.send->describe();
    EXPECT_EQ(end.send->try_send(*region, 0, 1), nullptr);
  };
  run_and_kill(victim, survivor);
}

// A long message of which four parts are there, and the others are lost for as long as it matters.
constexpr uint64_t kLong = 9_MiB;
constexpr uint64_t kThere = 4_MiB;
void use_short_requests() { ::setenv("NORIA_SOFT_DEVICES", "name=rail0,max_msg=1", 1); }
ConnectOptions patient(const std::string& peer_name) {
  return {.peer_name = peer_name, .qps = 1, .ack_timeout = 22};
}
struct HalfSent {
  void send(Post& post, const std::string& peer_name) {
    use_short_requests();
    ::setenv("NORIA_SOFT_FAULTS", "qp=1: after msgs=4 do lose for=60s", 1);
    end.emplace();
    ASSERT_NE(end->send = end->call(post.peer, patient(peer_name)), nullptr);
    auto made = end->domain->allocate(kLong);
    ASSERT_TRUE(made.is_ok());
    region = std::move(*made);
    ASSERT_TRUE(end->poll_until([&] {
      if (request == nullptr) request = end->send->try_send(region, 0, kLong);
      return end->domain->stats().sent_bytes >= kThere;
    }));
    EXPECT_FALSE(request->is_done());
  }
  std::optional<TransportEnd> end;
  Region region;
  Request* request = nullptr;
};

TEST(Transport_peer, A_sender_killed_between_two_parts_of_a_message_fails_its_receive) {
  const auto victim = [](Post& post) {
    HalfSent half;
    ASSERT_NO_FATAL_FAILURE(half.send(post, "the survivor"));
    await_the_end(post);
  };
  const auto survivor = [](Post& post) {
    use_short_requests();
    TransportEnd end;
    ASSERT_NE(end.recv = end.accept(post.peer, patient("rank 6")), nullptr);
    auto region = end.domain->allocate(kLong);
    ASSERT_TRUE(region.is_ok());
    Request* const received = end.recv->try_recv(*region, 0, kLong);
    ASSERT_NE(received, nullptr);
    ASSERT_TRUE(end.poll_until([&] { return received->is_done(); }));
    EXPECT_EQ(received->status().code(), Code::peer_lost);
    EXPECT_EQ(received->bytes(), 0u) << "of a message that did not arrive";
    EXPECT_NE(end.recv->describe().find("process died"), std::string::npos) << end.recv->describe();
    end.recv.reset();
    *region = Region();
    end.domain.reset();
    EXPECT_EQ(end.provider->api().live_objects(), 0);
  };
  run_and_kill(victim, survivor);
}

TEST(Transport_peer, A_receiver_killed_between_two_parts_of_a_message_fails_its_send) {
  const auto victim = [](Post& post) {
    use_short_requests();
    TransportEnd end;
    ASSERT_NE(end.recv = end.accept(post.peer, patient("the survivor")), nullptr);
    auto region = end.domain->allocate(kLong);
    ASSERT_TRUE(region.is_ok());
    ASSERT_NE(end.recv->try_recv(*region, 0, kLong), nullptr);
    post.peer.recv<uint8_t>();
    await_the_end(post);
  };
  const auto survivor = [](Post& post) {
    HalfSent half;
    ASSERT_NO_FATAL_FAILURE(half.send(post, "rank 2"));
    post.peer.send(uint8_t{1});
    ASSERT_TRUE(half.end->poll_until([&] { return half.request->is_done(); }));
    EXPECT_EQ(half.request->status().code(), Code::peer_lost);
    EXPECT_EQ(half.request->bytes(), 0u);
    EXPECT_NE(half.end->send->describe().find("rank 2"), std::string::npos)
        << half.end->send->describe();
    half.end->send.reset();
    half.region = Region();
    half.end->domain.reset();
    EXPECT_EQ(half.end->provider->api().live_objects(), 0);
  };
  run_and_kill(victim, survivor);
}

TEST(Transport_peer, Its_death_wakes_who_sleeps) {
  const auto victim = [](Post& post) {
    TransportEnd end;
    ASSERT_NO_FATAL_FAILURE(end.connect(post.peer, "the sleeper"));
    await_the_end(post);
  };
  const auto survivor = [](Post& post) {
    TransportEnd end;
    ASSERT_NO_FATAL_FAILURE(end.listen(post.peer, "rank 1"));
    const Nanoseconds deadline = now_ns() + test::kPatience;
    while (end.recv->status().is_ok() && now_ns() < deadline)
      ASSERT_TRUE(end.domain->arm_and_wait(deadline, -1).is_ok());
    EXPECT_EQ(end.recv->status().code(), Code::peer_lost);
  };
  run_and_kill(victim, survivor);
}

}  // namespace
}  // namespace noria::transport
