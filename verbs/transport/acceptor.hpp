// Acceptor: the listener's side of one handshake (handshake.hpp has the steps).
//
// Until the token was seen to be right the peer is a stranger: it costs a socket and nothing else,
// gets no answer, and its end is nobody's failure.
//
// Threads: one at a time.
#pragma once

#include <memory>
#include <string>

#include "verbs/transport/handshake.hpp"
#include "verbs/transport/recv.hpp"

namespace noria::transport {

class Acceptor : public SessionCore {
 public:
  Acceptor(Socket socket, Domain& domain, const ConnectOptions& options, const wire::Token& token);

  void advance_steps();
  bool is_authenticated() const { return is_authenticated_; }
  std::unique_ptr<RecvState> take_state() { return std::move(state_); }

 private:
  Step on_hello();
  Step on_accept_sent();
  Step on_ready();
  Step on_refusal_sent();

  Step refuse(const wire::Refuse& refusal, Status status);
  Status set_up(const wire::Hello& hello);

  static const std::array<Row<Acceptor>, 4> kTable;

  Domain& domain_;
  const ConnectOptions& options_;
  const wire::Token& token_;
  std::unique_ptr<RecvState> state_;
  std::string peer_name_;
  Status refused_with_;
  bool is_authenticated_ = false;
};

}  // namespace noria::transport
