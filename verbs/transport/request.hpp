// Request: one message or read under way.
//
// Made by the try_* calls of a connection, from that connection's own fixed pools; given back with
// release(). It is done when its bytes are where they belong, or when it failed.
//
// Threads: the owner of the connection's domain.
#pragma once

#include <cstdint>

#include "base/check.hpp"
#include "base/status.hpp"

namespace noria::transport {

// A line of its own: all that is read and written of a message is there.
class alignas(64) Request {
 public:
  bool is_free() const { return state_ == State::free; }
  bool is_done() const { return state_ == State::done; }
  Status status() const { return status_; }  // valid once done
  // True length once done; may be less than was offered. Of a group: RecvConnection::part_bytes().
  uint64_t bytes() const { return bytes_; }
  uint32_t messages() const { return messages_; }  // one, or those of its group
  // What set_owner() of its connection said.
  void* owner() const { return owner_; }

 private:
  friend class SendConnection;
  friend class RecvConnection;
  friend class RequestAccess;  // progress and completion routing

  enum class State : uint8_t { free, under_way, done };

  void give_back() {
    NORIA_CHECK(is_done(), "only a request that is done can be released, once");
    state_ = State::free;
  }

  void* owner_ = nullptr;
  uint64_t bytes_ = 0;
  uint64_t room_ = 0;  // of a receive: the bytes that were offered
  Status status_;
  uint32_t message_ = UINT32_MAX;  // of a receive: as its pieces name it, while they are awaited
  uint16_t pieces_ = 0;            // of a send, that are under way; of a receive, that are here
  State state_ = State::free;
  uint8_t messages_ = 1;
};
static_assert(sizeof(Request) == 64, "a power of two: a slot is found by a shift");

}  // namespace noria::transport
