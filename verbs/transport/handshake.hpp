// The handshake as state tables: what each step waits for, and what runs when it is there.
//
//   connector: connecting -> sending_hello -> awaiting_answer -> sending_ready -> done
//   listener:  awaiting_hello -> sending_accept -> awaiting_ready -> done
//                             \> sending_refusal -> failed
//
// Both sides drive the same advance() over their own table (connector.cc, acceptor.cc). A step
// never blocks; the whole handshake has one deadline. What must agree is compared by the listener
// alone and told to the connector with both values, so that both sides name the same two.
//
// Threads: one at a time per session.
#pragma once

#include <array>
#include <optional>
#include <string>

#include "base/clock.hpp"
#include "verbs/transport/control.hpp"
#include "verbs/transport/listener.hpp"
#include "verbs/transport/wire.hpp"

namespace noria::transport {

// A peer that takes longer is lost: the socket is local to the job and both sides only compute.
inline constexpr Nanoseconds kHandshakeTimeout = 30_s;

enum class Step : uint8_t {
  connecting,
  sending_hello,
  awaiting_answer,
  sending_ready,
  awaiting_hello,
  sending_accept,
  awaiting_ready,
  sending_refusal,
  done,
  failed,
};

enum class Wait : uint8_t { connect, send, receive };

template <class Session>
struct Row {
  Step step;
  Wait wait;
  Step (Session::*then)();
  const char* doing;  // for the text of a failure: "waiting for the peer's answer"
};

// What every session has.
struct SessionCore {
  ControlSocket control;
  Step step;
  Nanoseconds deadline = now_ns() + kHandshakeTimeout;
  Status failure;
  std::string text;  // of the failure, for people

  Step fail(Status status, const std::string& why) {
    failure = status;
    text = why;
    return step = Step::failed;
  }
};

// Runs steps until one has to wait. Afterwards session.step is the waiting step, done or failed.
template <class Session, size_t kRows>
void advance(Session& session, const std::array<Row<Session>, kRows>& table) {
  while (session.step != Step::done && session.step != Step::failed) {
    const Row<Session>* row = nullptr;
    for (const auto& candidate : table)
      if (candidate.step == session.step) row = &candidate;
    NORIA_CHECK(row != nullptr, "every step that waits has a row");

    Progress progress = Progress::pending;
    Status connected;
    switch (row->wait) {
      case Wait::send: progress = session.control.pump_send(); break;
      case Wait::receive: progress = session.control.pump_receive(); break;
      case Wait::connect:
        connected = connect_result(session.control.socket());
        progress = connected.is_ok()                     ? Progress::done
                   : connected.code() == Code::timed_out ? Progress::pending
                                                         : Progress::closed;
        break;
    }
    switch (progress) {
      case Progress::done: session.step = (session.*row->then)(); break;
      case Progress::pending:
        if (now_ns() < session.deadline) return;
        session.fail(Status(Code::timed_out), std::string("gave up after 30 s of ") + row->doing);
        break;
      case Progress::closed:
        session.fail(connected.is_ok() ? Status(Code::peer_lost) : connected,
                     std::string("the peer closed the socket while we were ") + row->doing);
        break;
      case Progress::garbage:
        session.fail(Status(Code::stranger),
                     std::string("garbage on the socket while ") + row->doing);
        break;
    }
  }
}

// What must be equal on both sides.
struct Terms {
  uint64_t version = wire::kVersion;
  uint64_t provider_kind = 0;
  uint64_t fingerprint = 0;
};

// The first difference, as it travels; nothing when all agree.
std::optional<wire::Refuse> first_difference(const Terms& listener, const Terms& connector);

// What the handshake fails with on both sides, where it is refused for `reason`.
Status refused_for(wire::Reason reason);

// "fingerprints differ: ours 0x1, the peer's 0x2: ..."
std::string explain(const wire::Refuse& refuse, bool is_listener);

Terms terms_of(Domain& domain, const ConnectOptions& options);
std::array<char, 64> own_name();  // "host:pid", zero-terminated

// Words of a peer's, zero-terminated or not: whatever it sent, what goes into logs is a line.
std::string line_of(const char* words, size_t capacity);
template <size_t kCapacity>
std::string text_of(const std::array<char, kCapacity>& words) {
  return line_of(words.data(), kCapacity);
}

bool is_same_token(const wire::Token& a, const wire::Token& b);  // in constant time

}  // namespace noria::transport
