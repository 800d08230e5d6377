// ReceiveRoom: how long a message may be that any of the posted receives can take, so that whoever
// sends a small one need not look at the receive itself: a line that changes cores twice for each.
//
// It is kept without a look at those that are posted already. A receive with less lowers it at
// once; it rises again when all that were posted by then are used up. Nothing that the answer
// promises is taken back but by doubt(): memory went that one of them may name.
//
// Threads: under Qp::receive.
#pragma once

#include <algorithm>
#include <cstdint>

namespace noria::soft {

class ReceiveRoom {
 public:
  // One more than the longest message that is asked about; 0 stands for none, an empty one either.
  explicit ReceiveRoom(uint32_t most) : most_(most), now_(most), later_(most) {}

  // Receive `number` is posted next, with `room`; those before `head` are used up. What holds for
  // all that are posted then.
  uint32_t add(uint64_t number, uint64_t head, uint32_t room) {
    if (head >= since_) {
      now_ = later_;
      later_ = most_;
      since_ = number;
    }
    now_ = std::min(now_, room);
    later_ = std::min(later_, room);
    return now_;
  }
  // Of the receives before `number` nothing is known any more.
  void doubt(uint64_t number) {
    now_ = 0;
    later_ = most_;
    since_ = number;
  }

 private:
  uint32_t most_;
  uint32_t now_;    // of all
  uint32_t later_;  // of those from `since_` on
  uint64_t since_ = 0;
};

}  // namespace noria::soft
