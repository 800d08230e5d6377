// RingInbox: what comes from the left neighbour on the reduce stream, in order: headers, and
// notices or chunks.
//
// A fixed set of slots in memory that peers map where the device has it, so that a message costs
// stores. Slots are offered again as they are taken, also between collectives: the neighbour may
// be ahead by one.
//
// Threads: the engine's driver, one at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "bucketing/ring_core.hpp"

namespace noria::bucketing {

class RingInbox {
 public:
  struct Shape {
    uint32_t slots;
    uint64_t slot_bytes;
  };
  // `memory` holds all slots.
  RingInbox(transport::Region memory, Shape shape)
      : memory_(std::move(memory)), slots_(shape.slots), slot_bytes_(shape.slot_bytes) {}

  struct Message {
    std::byte* data = nullptr;  // null: none yet
    uint64_t bytes = 0;
  };
  // The oldest message that was not taken; the same until take(). Offers the free slots first.
  NORIA_HOT Message peek(RingCore& core);
  NORIA_HOT void take(RingCore& core);
  // The message that was looked at goes on without its first bytes.
  void drop_front(uint64_t bytes) {
    front_.data += bytes;
    front_.bytes -= bytes;
  }

 private:
  NORIA_HOT void offer(RingCore& core);

  transport::Region memory_;
  uint32_t slots_;
  uint64_t slot_bytes_;
  RequestFifo offered_;
  uint32_t next_slot_ = 0;  // to be offered
  uint32_t oldest_slot_ = 0;
  Message front_;
};

}  // namespace noria::bucketing
