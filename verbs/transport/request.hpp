// Request: one message or read under way.
//
// Made by the try_* calls of a connection, from that connection's own fixed pools; given back with
// release(). It is done when its bytes are where they belong, or when it failed.
//
// Threads: the owner of the connection's domain.
#pragma once

#include <cstdint>

#include "base/status.hpp"

namespace noria::transport {

class Request {
 public:
  bool is_done() const { return state_ == State::done; }
  Status status() const { return status_; }  // valid once done
  // True length once done; may be less than was offered. Of a group: RecvConnection::part_bytes().
  uint64_t bytes() const { return bytes_; }

 private:
  friend class SendConnection;
  friend class RecvConnection;
  friend class RequestAccess;  // progress and completion routing

  enum class State : uint8_t { free, under_way, done };

  uint64_t bytes_ = 0;
  uint64_t room_ = 0;  // of a receive: the bytes that were offered
  Status status_;
  uint32_t message_ = UINT32_MAX;  // of a receive: as its pieces name it, while they are awaited
  uint16_t pieces_left_ = 0;       // of a receive, 0 until its first piece tells how many there are
  State state_ = State::free;
  uint8_t members_ = 1;  // of a receive: with it, the messages of its group
};
static_assert(sizeof(Request) == 32, "a power of two: a slot is found by a shift");

}  // namespace noria::transport
