// One end of a connection in a process of its own: a domain and what was connected over a Wire.
//
// Threads: one.
#pragma once

#include "tests/support/crew.hpp"
#include "tests/support/transport_pair.hpp"

namespace noria::test {

struct TransportEnd {
  std::shared_ptr<const verbs::Provider> provider = provider_from_environment();
  std::unique_ptr<transport::Domain> domain = make_domain(provider, params_from_environment());
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

  void listen(Wire& peer, const std::string& peer_name) {
    auto listener = transport::Listener::open(*domain, "127.0.0.1", {.peer_name = peer_name});
    ASSERT_TRUE(listener.is_ok());
    peer.send((*listener)->handle());
    ASSERT_TRUE(poll_until([&] {
      auto accepted = (*listener)->try_accept();
      if (accepted.is_ok()) recv = std::move(*accepted);
      return recv != nullptr || !accepted.is_ok();
    }));
    ASSERT_NE(recv, nullptr) << (*listener)->describe();
  }
  void connect(Wire& peer, const std::string& peer_name) {
    const auto handle = peer.recv<transport::Handle>();
    auto connector = transport::Connector::start(*domain, handle, {.peer_name = peer_name});
    ASSERT_TRUE(connector.is_ok());
    ASSERT_TRUE(poll_until([&] {
      auto finished = (*connector)->try_finish();
      if (finished.is_ok()) send = std::move(*finished);
      return send != nullptr || !finished.is_ok();
    }));
    ASSERT_NE(send, nullptr) << (*connector)->describe();
  }
};

}  // namespace noria::test
