// RequestFifo: requests of one connection in the order in which they complete.
//
// Holds at most kCapacity; an entry may be null: an item with no bytes, done as it is. push() and
// pop() are a few instructions and never allocate.
//
// Threads: the owner of the connection's domain.
#pragma once

#include <array>
#include <cstdint>

#include "base/check.hpp"
#include "base/units.hpp"
#include "verbs/transport/connection.hpp"

namespace noria::bucketing {

class RequestFifo {
 public:
  static constexpr uint32_t kCapacity = transport::kWindow;
  static_assert(is_pow2(kCapacity));

  bool is_empty() const { return head_ == tail_; }
  bool is_full() const { return size() == kCapacity; }
  uint32_t size() const { return tail_ - head_; }

  void push(transport::Request* request) {
    NORIA_DCHECK(!is_full(), "more requests than the window holds");
    entries_[tail_++ % kCapacity] = request;
  }
  transport::Request* front() const { return entries_[head_ % kCapacity]; }
  bool front_is_done() const { return front() == nullptr || front()->is_done(); }
  void pop() { ++head_; }

 private:
  std::array<transport::Request*, kCapacity> entries_{};
  uint32_t head_ = 0, tail_ = 0;  // may wrap: only differences count
};

}  // namespace noria::bucketing
