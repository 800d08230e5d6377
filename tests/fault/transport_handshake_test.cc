// Strangers on the listener's socket, and peers that must not be connected.

#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <random>

#include "tests/support/no_descriptors.hpp"
#include "tests/support/transport_pair.hpp"
#include "verbs/transport/socket.hpp"
#include "verbs/transport/wire.hpp"

namespace noria::transport {
namespace {

using test::Connected;

wire::Handle read_handle(const Handle& handle) {
  wire::Handle out;
  std::memcpy(static_cast<void*>(&out), handle.bytes.data(), sizeof out);
  return out;
}
Handle write_handle(const wire::Handle& handle) {
  Handle out;
  std::memcpy(out.bytes.data(), &handle, sizeof handle);
  return out;
}

// A caller without any of our code, on a blocking socket.
Socket call(const Handle& handle) {
  Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(read_handle(handle).port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  EXPECT_EQ(connect(socket.fd(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  timeval patience{.tv_sec = 20, .tv_usec = 0};
  setsockopt(socket.fd(), SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  return socket;
}
template <class Message>
void say(const Socket& socket, const Message& message, size_t bytes = sizeof(Message)) {
  ASSERT_EQ(send(socket.fd(), &message, bytes, MSG_NOSIGNAL), static_cast<ssize_t>(bytes));
}

// Whether the whole message is there; then it is taken.
template <class Message>
bool hears(const Socket& socket, Message* message) {
  const auto whole = static_cast<ssize_t>(sizeof *message);
  void* const into = message;
  return recv(socket.fd(), into, sizeof *message, MSG_DONTWAIT | MSG_PEEK) == whole &&
         recv(socket.fd(), into, sizeof *message, MSG_DONTWAIT) == whole;
}

class HandshakeTest : public test::TransportPair {
 protected:
  void SetUp() override {
    TransportPair::SetUp();
    auto listener = Listener::open(*b_, "127.0.0.1", {.fingerprint = 7, .peer_name = "rank 1"});
    ASSERT_TRUE(listener.is_ok());
    listener_ = std::move(*listener);
  }
  void TearDown() override {
    listener_.reset();
    TransportPair::TearDown();
  }

  // Steps the listener until it answers something; fails the test on patience.
  Result<std::unique_ptr<RecvConnection>> accept_something() {
    Result<std::unique_ptr<RecvConnection>> answer{std::unique_ptr<RecvConnection>()};
    EXPECT_TRUE(poll_until([&] {
      answer = listener_->try_accept();
      return !answer.is_ok() || *answer != nullptr;
    }));
    return answer;
  }
  // The listener's end of an attempt under way.
  std::unique_ptr<RecvConnection> accept_from(Connector& connector) {
    std::unique_ptr<RecvConnection> accepted;
    std::unique_ptr<SendConnection> sender;
    EXPECT_TRUE(poll_until([&] {
      auto answer = listener_->try_accept();
      if (answer.is_ok()) accepted = std::move(*answer);
      auto finished = connector.try_finish();
      if (finished.is_ok() && *finished != nullptr) sender = std::move(*finished);
      return !answer.is_ok() || !finished.is_ok() || accepted != nullptr;
    }));
    return accepted;
  }
  // Of an attempt that must fail.
  Status failure_of(Connector& connector) {
    Status failure;
    EXPECT_TRUE(poll_until([&] {
      auto finished = connector.try_finish();
      if (!finished.is_ok()) failure = finished.failure();
      return !failure.is_ok();
    }));
    return failure;
  }
  // An honest peer.
  Connected connect_honestly(const ConnectOptions& options = {.fingerprint = 7}) {
    Connected made;
    auto connector = Connector::start(*a_, listener_->handle(), options);
    EXPECT_TRUE(connector.is_ok());
    if (!connector.is_ok()) return made;
    EXPECT_TRUE(poll_until([&] {
      if (made.send == nullptr) {
        auto finished = (*connector)->try_finish();
        if (!finished.is_ok()) return true;
        made.send = std::move(*finished);
      }
      if (made.recv == nullptr) {
        auto accepted = listener_->try_accept();
        if (!accepted.is_ok()) return true;
        made.recv = std::move(*accepted);
      }
      return made.send != nullptr && made.recv != nullptr;
    }));
    return made;
  }
  // Both ends of an attempt that must fail: what each said.
  struct Refusal {
    Status connector, listener;
    std::string connector_text, listener_text;
  };
  Refusal refused(const Handle& handle, const ConnectOptions& options) {
    Refusal refusal;
    auto connector = Connector::start(*a_, handle, options);
    EXPECT_TRUE(connector.is_ok());
    if (!connector.is_ok()) return refusal;
    EXPECT_TRUE(poll_until([&] {
      if (refusal.listener.is_ok()) {
        auto accepted = listener_->try_accept();
        if (!accepted.is_ok()) refusal.listener = accepted.failure();
      }
      if (refusal.connector.is_ok()) {
        auto finished = (*connector)->try_finish();
        if (!finished.is_ok()) refusal.connector = finished.failure();
      }
      return !refusal.listener.is_ok() && !refusal.connector.is_ok();
    }));
    refusal.connector_text = (*connector)->describe();
    refusal.listener_text = listener_->describe();
    return refusal;
  }

  std::unique_ptr<Listener> listener_;
};

TEST_F(HandshakeTest, A_stranger_of_any_kind_keeps_nobody_out_and_is_no_failure) {
  std::vector<Socket> strangers;
  // Garbage; half a greeting, then silence; nothing at all; a whole greeting with a wrong token;
  // an early end.
  strangers.push_back(call(listener_->handle()));
  say(strangers.back(), "GET / HTTP/1.1\r\n\r\n");
  wire::Hello hello;
  hello.token = read_handle(listener_->handle()).token;
  strangers.push_back(call(listener_->handle()));
  say(strangers.back(), hello, 100);
  strangers.push_back(call(listener_->handle()));
  hello.token[15] ^= std::byte{1};
  strangers.push_back(call(listener_->handle()));
  say(strangers.back(), hello);
  call(listener_->handle());

  // Expect: an honest peer connects as if they were not there.
  const Connected link = connect_honestly();
  EXPECT_NE(link.send, nullptr);
  EXPECT_NE(link.recv, nullptr);
  EXPECT_EQ(listener_->describe(), "");

  // The wrong token.  Expect: no answer, only an end.
  char byte = 0;
  EXPECT_EQ(recv(strangers[3].fd(), &byte, 1, 0), 0);
}

TEST_F(HandshakeTest, A_crowd_of_silent_strangers_makes_room_for_a_peer) {
  std::vector<Socket> crowd;
  for (int i = 0; i < 300; ++i) {
    crowd.push_back(call(listener_->handle()));
    if (i % 50 == 0) {
      auto nobody = listener_->try_accept();
      ASSERT_TRUE(nobody.is_ok());
      ASSERT_EQ(*nobody, nullptr);
    }
  }
  const Connected link = connect_honestly();
  EXPECT_NE(link.send, nullptr);
  EXPECT_NE(link.recv, nullptr);
}

TEST_F(HandshakeTest, A_peer_that_has_spoken_is_heard_before_it_makes_room) {
  auto connector = Connector::start(*a_, listener_->handle(), {.fingerprint = 7});
  ASSERT_TRUE(connector.is_ok());
  for (int i = 0; i < 3; ++i) ASSERT_TRUE((*connector)->try_finish().is_ok());  // its greeting left

  // As many behind it as the listener hears at once, all of them in one look.
  std::vector<Socket> crowd;
  for (int i = 0; i < 128; ++i) crowd.push_back(call(listener_->handle()));
  EXPECT_NE(accept_from(**connector), nullptr);
}

TEST_F(HandshakeTest, Random_bytes_are_dropped_whatever_they_are) {
  std::mt19937_64 random(11);
  for (int i = 0; i < 100; ++i) {
    const Socket stranger = call(listener_->handle());
    std::array<unsigned char, 700> bytes;
    for (auto& byte : bytes) byte = static_cast<unsigned char>(random());
    // Half of them begin like a control message.
    const wire::Control header{.type = wire::Type::hello, .bytes = 512};
    if (i % 2 == 0) std::memcpy(bytes.data(), &header, sizeof header);
    say(stranger, bytes);
    auto nobody = listener_->try_accept();
    ASSERT_TRUE(nobody.is_ok());
    EXPECT_EQ(*nobody, nullptr);
  }
  EXPECT_NE(connect_honestly().recv, nullptr);
}

TEST_F(HandshakeTest, Other_fingerprints_are_refused_with_both_values_on_both_sides) {
  const Refusal refusal = refused(listener_->handle(), {.fingerprint = 9, .peer_name = "rank 0"});
  EXPECT_EQ(refusal.connector.code(), Code::mismatch);
  EXPECT_EQ(refusal.listener.code(), Code::mismatch);
  EXPECT_NE(refusal.connector_text.find("ours 0x0000000000000009, the peer's 0x0000000000000007"),
            std::string::npos)
      << refusal.connector_text;
  EXPECT_NE(refusal.listener_text.find("ours 0x0000000000000007, the peer's 0x0000000000000009"),
            std::string::npos)
      << refusal.listener_text;
  EXPECT_NE(refusal.connector_text.find("rank 0"), std::string::npos);
  EXPECT_NE(refusal.listener_text.find("rank 1"), std::string::npos);

  // Expect: the listener is as usable as before.
  EXPECT_NE(connect_honestly().recv, nullptr);
}

TEST_F(HandshakeTest, Another_wire_version_is_refused_with_both_values_and_any_length) {
  // A peer of the version before, and of the next: another greeting, same header and token.
  for (const auto version : {uint16_t{wire::kVersion - 1}, uint16_t{wire::kVersion + 1}}) {
    const Socket peer = call(listener_->handle());
    std::array<std::byte, 700> bytes{};
    const wire::Control header{.version = version, .type = wire::Type::hello, .bytes = 700};
    std::memcpy(bytes.data(), &header, sizeof header);
    const wire::Token token = read_handle(listener_->handle()).token;
    std::memcpy(bytes.data() + sizeof header, token.data(), token.size());
    say(peer, bytes);
    const auto answer = accept_something();
    ASSERT_FALSE(answer.is_ok());
    EXPECT_EQ(answer.failure().code(), Code::mismatch);
    EXPECT_NE(listener_->describe().find("ours " + std::to_string(wire::kVersion) +
                                         ", the peer's " + std::to_string(version)),
              std::string::npos)
        << listener_->describe();
    wire::Refuse refuse;
    ASSERT_EQ(recv(peer.fd(), static_cast<void*>(&refuse), sizeof refuse, MSG_WAITALL),
              static_cast<ssize_t>(sizeof refuse));
    EXPECT_EQ(refuse.reason, wire::Reason::version);
    EXPECT_EQ(refuse.listener_value, wire::kVersion);
    EXPECT_EQ(refuse.connector_value, version);
  }
}

TEST_F(HandshakeTest, Another_device_kind_is_refused) {
  const Socket peer = call(listener_->handle());
  wire::Hello hello;
  hello.token = read_handle(listener_->handle()).token;
  hello.fingerprint = 7;
  hello.provider_kind = 1;
  hello.ends.rails = 1;
  say(peer, hello);
  const auto answer = accept_something();
  ASSERT_FALSE(answer.is_ok());
  EXPECT_NE(listener_->describe().find("ours is a software HCA, the peer's a RDMA device"),
            std::string::npos)
      << listener_->describe();
}

TEST_F(HandshakeTest, A_known_peer_with_senseless_numbers_gets_a_refusal_and_leaves_nothing) {
  const int64_t before = provider_->api().live_objects();
  const auto nonsense = [](wire::Hello& hello, int kind) {
    if (kind == 0) hello.ends.qps = 0;
    if (kind == 1) hello.ends.qps = 200;
    if (kind == 2) hello.credits.bytes = 8;
    if (kind == 3) hello.ends.rail[0].is_ethernet ^= 1;
    if (kind == 4) hello.ends.rails = 0;
    if (kind == 5) hello.ends.rails = kMaxRails + 1;
  };
  for (int kind = 0; kind < 6; ++kind) {
    const Socket peer = call(listener_->handle());
    wire::Hello hello;
    hello.token = read_handle(listener_->handle()).token;
    hello.fingerprint = 7;
    hello.provider_kind = 2;
    hello.ends.rails = 1;
    hello.ends.qps = 1;
    hello.ends.rail[0].mtu = 5;
    hello.ends.rail[0].is_ethernet = provider_->ports().front().is_ethernet ? 1 : 0;
    nonsense(hello, kind);
    say(peer, hello);
    EXPECT_FALSE(accept_something().is_ok()) << kind;
    EXPECT_EQ(provider_->api().live_objects(), before);
  }
}

TEST_F(HandshakeTest, A_connector_without_the_token_learns_that_the_socket_was_closed) {
  wire::Handle handle = read_handle(listener_->handle());
  handle.token[0] ^= std::byte{1};
  auto connector = Connector::start(*a_, write_handle(handle), {.fingerprint = 7});
  ASSERT_TRUE(connector.is_ok());
  Status failure;
  ASSERT_TRUE(poll_until([&] {
    static_cast<void>(listener_->try_accept());
    auto finished = (*connector)->try_finish();
    if (!finished.is_ok()) failure = finished.failure();
    return !finished.is_ok();
  }));
  EXPECT_EQ(failure.code(), Code::peer_lost);
  EXPECT_EQ(listener_->describe(), "");
}

// A listener without any of our code, which is called by who has its handle.
class BareListener {
 public:
  explicit BareListener(const Handle& like) : handle_(read_handle(like)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t length = sizeof address;
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    EXPECT_EQ(bind(socket_.fd(), raw, length), 0);
    EXPECT_EQ(listen(socket_.fd(), 1), 0);
    EXPECT_EQ(getsockname(socket_.fd(), raw, &length), 0);
    handle_.port = ntohs(address.sin_port);
  }
  Handle handle() const { return write_handle(handle_); }
  // Blocks until it is called, which Connector::start() has done.
  Socket accept() const { return Socket(::accept(socket_.fd(), nullptr, nullptr)); }

 private:
  const Socket socket_{::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  wire::Handle handle_;
};

TEST_F(HandshakeTest, A_listener_without_the_records_that_were_asked_for_is_refused) {
  const BareListener listener(listener_->handle());
  params_.adaptive_routing = "on";
  const auto domain = test::make_domain(provider_, params_);
  ASSERT_NE(domain, nullptr);
  auto connector = Connector::start(*domain, listener.handle(), {});
  ASSERT_TRUE(connector.is_ok());
  const Socket peer = listener.accept();
  say(peer, wire::Accept{});
  EXPECT_EQ(failure_of(**connector).code(), Code::mismatch);
  EXPECT_NE((*connector)->describe().find("records"), std::string::npos)
      << (*connector)->describe();
}

TEST_F(HandshakeTest, An_answer_of_another_kind_or_version_ends_the_attempt) {
  const BareListener listener(listener_->handle());
  const auto answered_with = [&](const auto& message) {
    auto connector = Connector::start(*a_, listener.handle(), {.peer_name = "rank 1"});
    EXPECT_TRUE(connector.is_ok());
    if (!connector.is_ok()) return std::string("no connector");
    const Socket peer = listener.accept();
    say(peer, message);
    EXPECT_EQ(failure_of(**connector).code(), Code::mismatch);
    return (*connector)->describe();
  };
  wire::Accept of_the_next_version;
  of_the_next_version.control.version = wire::kVersion + 1;
  // Expect:
  for (const std::string& text :
       {answered_with(wire::Ready{}), answered_with(of_the_next_version)}) {
    EXPECT_EQ(text.find("connecting to rank 1 (127.0.0.1:"), 0u) << text;
    EXPECT_NE(text.find("a message of another kind"), std::string::npos) << text;
  }
}

// Its greeting is an honest peer's, and what follows is not.
TEST_F(HandshakeTest, A_peer_that_says_another_thing_than_that_it_is_ready_is_refused) {
  const BareListener between(listener_->handle());
  auto connector = Connector::start(*a_, between.handle(), {.fingerprint = 7});
  ASSERT_TRUE(connector.is_ok());
  const Socket honest = between.accept();
  wire::Hello hello;
  ASSERT_TRUE(poll_until([&] {
    EXPECT_TRUE((*connector)->try_finish().is_ok());
    return hears(honest, &hello);
  }));
  const int64_t before = provider_->api().live_objects();
  const Socket peer = call(listener_->handle());
  say(peer, hello);
  wire::Accept accept;
  ASSERT_TRUE(poll_until([&] {
    EXPECT_TRUE(listener_->try_accept().is_ok());
    return hears(peer, &accept);
  }));
  say(peer, hello);
  const auto answer = accept_something();

  // Expect: told by whom, and nothing is left of it.
  ASSERT_FALSE(answer.is_ok());
  EXPECT_EQ(answer.failure().code(), Code::mismatch);
  EXPECT_NE(listener_->describe().find("a message of another kind"), std::string::npos)
      << listener_->describe();
  EXPECT_EQ(provider_->api().live_objects(), before);
  EXPECT_NE(connect_honestly().recv, nullptr);
}

TEST_F(HandshakeTest, A_handle_that_is_none_is_refused_at_once) {
  EXPECT_EQ(Connector::start(*a_, Handle{}, {}).failure().code(), Code::bad_argument);
  wire::Handle handle = read_handle(listener_->handle());
  handle.family = 5;
  EXPECT_EQ(Connector::start(*a_, write_handle(handle), {}).failure().code(), Code::bad_argument);
  EXPECT_EQ(Listener::open(*a_, "no.such.host", {}).failure().code(), Code::bad_argument);
}

TEST_F(HandshakeTest, Nobody_listening_is_a_lost_peer_with_its_address) {
  const Handle handle = listener_->handle();
  listener_.reset();
  auto connector = Connector::start(*a_, handle, {.peer_name = "rank 3"});
  Status failure = connector.is_ok() ? Status() : connector.failure();
  std::string text;
  if (connector.is_ok()) {
    ASSERT_TRUE(poll_until([&] {
      auto finished = (*connector)->try_finish();
      if (!finished.is_ok()) failure = finished.failure();
      return !finished.is_ok();
    }));
    text = (*connector)->describe();
    EXPECT_NE(text.find("rank 3 (127.0.0.1:"), std::string::npos) << text;
  }
  EXPECT_EQ(failure, Status::from_errno(Code::peer_lost, ECONNREFUSED));
}

TEST_F(HandshakeTest, A_peer_that_leaves_half_way_is_reported_and_the_next_one_connects) {
  auto connector = Connector::start(*a_, listener_->handle(), {.fingerprint = 7});
  ASSERT_TRUE(connector.is_ok());
  // The greeting is out and its answer on the way; then the peer goes.
  for (int i = 0; i < 100; ++i) ASSERT_TRUE((*connector)->try_finish().is_ok());
  auto nobody = listener_->try_accept();
  ASSERT_TRUE(nobody.is_ok());
  ASSERT_EQ(*nobody, nullptr);
  connector->reset();
  const auto answer = accept_something();
  ASSERT_FALSE(answer.is_ok());
  EXPECT_EQ(answer.failure().code(), Code::peer_lost);
  EXPECT_NE(connect_honestly().recv, nullptr);
}

TEST_F(HandshakeTest, Peers_with_different_numbers_of_queue_pairs_use_the_smaller) {
  for (const uint32_t qps : {1u, 3u, 16u}) {
    const Connected link = connect_honestly({.fingerprint = 7, .qps = qps});
    ASSERT_NE(link.send, nullptr);
    ASSERT_NE(link.recv, nullptr);
    const auto used = std::min<uint64_t>(qps, params_.qps_per_connection);
    EXPECT_NE(link.send->describe().find(std::to_string(used) + " queue pairs"), std::string::npos)
        << link.send->describe();
  }
}

TEST_F(HandshakeTest, A_caller_for_whom_no_descriptor_is_left_is_an_error_that_says_so) {
  const Socket caller = call(listener_->handle());
  const auto [answer, text] = [&] {
    const test::NoDescriptors none;
    auto accepted = listener_->try_accept();
    return std::pair(std::move(accepted), listener_->describe());
  }();
  // Expect: the cause, and what to raise; the listener goes on.
  ASSERT_FALSE(answer.is_ok());
  EXPECT_EQ(answer.failure().raw(), EMFILE);
  EXPECT_NE(text.find("Too many open files"), std::string::npos) << text;
  EXPECT_NE(text.find("ulimit -n"), std::string::npos) << text;
  EXPECT_TRUE(listener_->try_accept().is_ok());
}

TEST_F(HandshakeTest, A_port_that_is_taken_is_no_fault_of_the_address) {
  const auto taken = SocketAddress::parse("127.0.0.1", read_handle(listener_->handle()).port);
  ASSERT_TRUE(taken.is_ok());
  SocketAddress bound;
  const auto second = listen_on(*taken, &bound);
  ASSERT_FALSE(second.is_ok());
  EXPECT_EQ(second.failure(), Status::from_errno(Code::no_memory, EADDRINUSE));
  // Expect: an address that is not of this host is.
  const auto foreign = SocketAddress::parse("192.0.2.1", 0);
  const auto third = listen_on(*foreign, &bound);
  ASSERT_FALSE(third.is_ok());
  EXPECT_EQ(third.failure(), Status::from_errno(Code::bad_argument, EADDRNOTAVAIL));
}

}  // namespace
}  // namespace noria::transport
