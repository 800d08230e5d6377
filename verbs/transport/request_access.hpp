// RequestAccess: how the transport moves a Request through its life, and the pools that hold them.
//
//   free --take()--> under way --finish()--> done --give_back()--> free
//
// Pools are arrays indexed by slot: the request of message n is at slot n % kWindow, and a slot
// whose request was not released yet stops the window. Nothing is allocated.
//
// Threads: the owner of the domain.
#pragma once

#include <span>

#include "base/check.hpp"
#include "verbs/transport/connection.hpp"
#include "verbs/transport/request.hpp"

namespace noria::transport {

class RequestAccess {
 public:
  NORIA_HOT static bool is_under_way(const Request& request) {
    return request.state_ == Request::State::under_way;
  }
  NORIA_HOT static void take(Request& request, uint64_t bytes, uint32_t pieces) {
    request.bytes_ = bytes;
    request.status_ = Status();
    request.pieces_ = static_cast<uint16_t>(pieces);
    request.state_ = Request::State::under_way;
  }
  // Ends it well: take() has set the status.
  NORIA_HOT static void finish(Request& request) { request.state_ = Request::State::done; }
  NORIA_COLD static void fail(Request& request, Status status) {
    request.status_ = status;
    finish(request);
  }
  static void give_back(Request& request) { request.give_back(); }
  static void set_owner(std::span<Request> pool, void* owner) {
    for (Request& request : pool) request.owner_ = owner;
  }
  NORIA_HOT static uint16_t& pieces(Request& request) { return request.pieces_; }
  NORIA_HOT static uint64_t& bytes(Request& request) { return request.bytes_; }
  NORIA_HOT static uint64_t& room(Request& request) { return request.room_; }
  NORIA_HOT static uint32_t& message(Request& request) { return request.message_; }
  NORIA_HOT static void set_messages(Request& request, uint32_t messages) {
    request.messages_ = static_cast<uint8_t>(messages);
  }

  // A request that is refused at once: done with `code`, and no part of the sequence.
  NORIA_COLD static Request* refuse(Request& request, Code code) {
    take(request, 0, 0);
    fail(request, Status(code));
    return &request;
  }
  // Ends every request of the pool that is under way.
  NORIA_COLD static void fail_all(std::span<Request> pool, Status status) {
    for (Request& request : pool)
      if (is_under_way(request)) request.bytes_ = 0, fail(request, status);
  }
};

}  // namespace noria::transport
