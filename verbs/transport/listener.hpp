// Listener, Connector, Acceptor: how a connection comes to be. All are polled, none blocks.
//
//   receiver                                   sender
//   Listener::open -> handle()  --128 bytes--> Connector(handle)
//   listener.try_accept()                      connector.try_finish()
//     null: not yet                              null: not yet
//     RecvConnection                             SendConnection
//
// The handle carries a random token: a stranger that reaches the socket without it is dropped
// without harm to the accept under way. Peers that differ in wire version, provider kind or
// fingerprint are refused with both values named, on both sides.
//
// Threads: one at a time per object; the resulting connection belongs to the domain's owner.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "base/result.hpp"
#include "verbs/transport/connection.hpp"
#include "verbs/transport/domain.hpp"

namespace noria::transport {

// Opaque to callers: magic, wire version, token, fingerprint, provider kind, address (wire.hpp).
struct Handle {
  std::array<std::byte, 128> bytes{};
};

struct ConnectOptions {
  uint64_t fingerprint = 0;  // of what the layers above must agree on
  std::string peer_name;     // "rank 3": used in errors only
  uint32_t qps = 0;          // 0: from Params::qps_per_connection
  // Where the parameters leave it open.
  uint8_t ack_timeout = 17;  // 4.096 us * 2^n; about 4 s with 7 retries
  uint8_t retries = 7;
  uint8_t traffic_class = 0;  // of data
  // A connector gives up after 30 s without an answer. With this it never does: the peer may take
  // its time to accept, and whoever polls knows when to stop.
  bool waits_for_ever = false;
  // Its Regions lie in kept storage (kept_storage.hpp), so that one that goes while a receive in it
  // is under way is found out: then small receives may be staged (staging.hpp).
  bool has_kept_regions = false;
  // A sender's queue pair has room for lines beside messages.
  bool sends_lines = false;
};

// Of a failed handshake: whether it was refused because the fingerprints differ.
bool are_fingerprints_unlike(const Status& failure);

class Listener {
 public:
  // Listens on `host` (a numeric IPv4 or IPv6 address of this machine), any free port.
  static Result<std::unique_ptr<Listener>> open(Domain& domain, const std::string& host,
                                                const ConnectOptions& options);
  ~Listener();
  const Handle& handle() const;

  // The connection once a peer finished the handshake; null for not yet; a failure when the peer
  // was refused or lost half-way (the listener stays usable).
  Result<std::unique_ptr<RecvConnection>> try_accept();
  std::string describe() const;  // the cause of the last failure, for people

 private:
  class State;
  explicit Listener(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

class Connector {
 public:
  static Result<std::unique_ptr<Connector>> start(Domain& domain, const Handle& handle,
                                                  const ConnectOptions& options);
  ~Connector();

  // The connection once the handshake is done; null for not yet; a failure ends the attempt.
  Result<std::unique_ptr<SendConnection>> try_finish();
  std::string describe() const;

 private:
  class State;
  explicit Connector(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace noria::transport
