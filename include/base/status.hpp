// Status: what went wrong, in 8 bytes that travel in a register.
//
// A Code is grouped by what must now be given up: this call, this connection, this port, this
// process. An Origin and a raw number say who reported it. There is no string: whoever first names
// the failure logs it once with the object's identity, and callers pass the Status up in silence.
// "Not yet" is an answer, never a Status.
//
// Threads: a value; any thread.
#pragma once

#include <cstdint>

namespace noria {

enum class Code : uint8_t {
  ok = 0,

  // This call is refused; the object it was made on stays usable.
  bad_argument = 1,
  bad_state = 2,
  unsupported = 3,
  no_memory = 4,
  timed_out = 5,
  aborted = 6,

  // The connection is gone; others go on.
  mismatch = 20,         // the peer differs in something that must agree
  stranger = 21,         // the peer could not prove who it is
  peer_lost = 22,        // the peer closed, died or cannot be reached
  connection_lost = 23,  // a queue pair failed on our side

  // The port or device is gone; connections on others go on.
  port_down = 40,
  device_lost = 41,

  // Nothing of this library can go on in this process.
  internal = 60,
};

// Who reported the raw number.
enum class Origin : uint8_t { none = 0, sys_errno = 1, wc_status = 2, async_event = 3 };

class [[nodiscard]] Status {
 public:
  constexpr Status() = default;  // ok
  constexpr explicit Status(Code code, Origin origin = Origin::none, int32_t raw = 0)
      : raw_(raw), code_(code), origin_(origin) {}

  static constexpr Status from_errno(Code code, int error) {
    return Status(code, Origin::sys_errno, error);
  }
  static constexpr Status from_wc(Code code, int wc_status) {
    return Status(code, Origin::wc_status, wc_status);
  }

  constexpr bool is_ok() const { return code_ == Code::ok; }
  constexpr Code code() const { return code_; }
  constexpr Origin origin() const { return origin_; }
  constexpr int32_t raw() const { return raw_; }

  friend constexpr bool operator==(const Status&, const Status&) = default;

 private:
  int32_t raw_ = 0;
  Code code_ = Code::ok;
  Origin origin_ = Origin::none;
};
static_assert(sizeof(Status) == 8);

constexpr const char* to_string(Code code) {
  switch (code) {
    case Code::ok: return "ok";
    case Code::bad_argument: return "bad argument";
    case Code::bad_state: return "bad state";
    case Code::unsupported: return "unsupported";
    case Code::no_memory: return "out of memory";
    case Code::timed_out: return "timed out";
    case Code::aborted: return "aborted";
    case Code::mismatch: return "mismatch with peer";
    case Code::stranger: return "stranger refused";
    case Code::peer_lost: return "peer lost";
    case Code::connection_lost: return "connection lost";
    case Code::port_down: return "port down";
    case Code::device_lost: return "device lost";
    case Code::internal: return "internal error";
  }
  return "unknown code";
}

}  // namespace noria
