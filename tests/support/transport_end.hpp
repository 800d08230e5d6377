// One end of a connection in a process of its own: a domain and what was connected over a Wire.
//
// Threads: one.
#pragma once

#include "tests/support/crew.hpp"
#include "tests/support/transport_pair.hpp"

namespace noria::test {

struct TransportEnd {
  // As the environment says, or with parameters and a number of rails of the test's choice.
  TransportEnd() : TransportEnd(params_from_environment(), transport::kMaxRails) {}
  TransportEnd(const Params& params, unsigned rails)
      : domain(make_domain(provider, params, rails)) {}

  std::shared_ptr<const verbs::Provider> provider = provider_from_environment();
  std::unique_ptr<transport::Domain> domain;
  std::unique_ptr<transport::SendConnection> send;
  std::unique_ptr<transport::RecvConnection> recv;

  // Polls until the predicate holds; false when patience ends.
  template <class Predicate>
  bool poll_until(Predicate is_true) {
    const Nanoseconds deadline = now_ns() + kPatience;
    while (!is_true()) {
      domain->poll();
      if (now_ns() > deadline) return false;
    }
    return true;
  }

  // One more connection from the peer, or to it; null after a failure of the test.
  std::unique_ptr<transport::RecvConnection> accept(Wire& peer,
                                                    const transport::ConnectOptions& options) {
    std::unique_ptr<transport::RecvConnection> made;
    auto listener = transport::Listener::open(*domain, "127.0.0.1", options);
    EXPECT_TRUE(listener.is_ok());
    if (!listener.is_ok()) return made;
    peer.send((*listener)->handle());
    EXPECT_TRUE(poll_until([&] {
      auto accepted = (*listener)->try_accept();
      if (accepted.is_ok()) made = std::move(*accepted);
      return made != nullptr || !accepted.is_ok();
    }));
    EXPECT_NE(made, nullptr) << (*listener)->describe();
    return made;
  }
  std::unique_ptr<transport::SendConnection> call(Wire& peer,
                                                  const transport::ConnectOptions& options) {
    std::unique_ptr<transport::SendConnection> made;
    const auto handle = peer.recv<transport::Handle>();
    auto connector = transport::Connector::start(*domain, handle, options);
    EXPECT_TRUE(connector.is_ok());
    if (!connector.is_ok()) return made;
    EXPECT_TRUE(poll_until([&] {
      auto finished = (*connector)->try_finish();
      if (finished.is_ok()) made = std::move(*finished);
      return made != nullptr || !finished.is_ok();
    }));
    EXPECT_NE(made, nullptr) << (*connector)->describe();
    return made;
  }

  // The one connection of a test that needs no more.
  void listen(Wire& peer, const std::string& peer_name) {
    ASSERT_NE(recv = accept(peer, {.peer_name = peer_name}), nullptr);
  }
  void connect(Wire& peer, const std::string& peer_name) {
    ASSERT_NE(send = call(peer, {.peer_name = peer_name}), nullptr);
  }
};

}  // namespace noria::test
