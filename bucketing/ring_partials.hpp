// RingPartials: where sums wait for their next hop when the caller has no room for them.
//
// A reduce-scatter leaves each rank its own block, but passes on partial sums of all others. They
// lie in a few slots, taken in the order of the additions and given back in that of the sends, when
// the message is through. Its segments step in groups (PipelineWalk::in_groups), so that at most
// kGroup sums wait for their turn; the other slots are for sends under way.
//
// Memory comes with the first collective that needs it: kBytes a communicator.
//
// Threads: the engine's driver, one at a time.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "bucketing/ring_core.hpp"
#include "bucketing/ring_outbox.hpp"
#include "bucketing/ring_run.hpp"

namespace noria::bucketing {

class RingPartials {
 public:
  // Between the addition of a sum and its send lie kGroup items of the walk.
  static constexpr uint32_t kGroup = 4;
  static constexpr uint32_t kSlots = 8;
  static_assert(kSlots > kGroup && is_pow2(kSlots), "a full group must not wait for itself");
  static constexpr uint64_t kBytes = kSlots * kChunkBytes;

  // False after core.fail().
  bool begin(RingCore& core) {
    taken_ = sent_ = 0;
    if (memory_.is_valid()) return true;
    auto allocated = core.domain().allocate(kBytes);
    if (!allocated) {
      core.fail({to_noria_status(allocated.failure().code()),
                 "rank " + std::to_string(core.place().rank) +
                     " has no memory for the partial sums of a reduce-scatter: " +
                     std::to_string(kBytes) + " bytes from " + core.domain().describe() + ": " +
                     cause_of(allocated.failure())});
      return false;
    }
    memory_ = std::move(allocated).value();
    return true;
  }

  // Null: all slots hold sums whose messages are not through.
  NORIA_HOT std::byte* next_free(const RingOutbox& outbox) const {
    if (taken_ >= kSlots) {
      const uint64_t oldest = taken_ - kSlots;
      if (oldest >= sent_ || outbox.through() < messages_[oldest % kSlots]) return nullptr;
    }
    return slot(taken_).data;
  }
  NORIA_HOT void on_added() { ++taken_; }

  NORIA_HOT Place next_to_send() const { return slot(sent_); }
  // The outbox took it.
  NORIA_HOT void on_sent(const RingOutbox& outbox) { messages_[sent_++ % kSlots] = outbox.taken(); }

 private:
  Place slot(uint64_t index) const {
    return {&memory_, memory_.base() + index % kSlots * kChunkBytes};
  }

  transport::Region memory_;
  uint64_t taken_ = 0, sent_ = 0;               // of this collective
  std::array<uint64_t, kSlots> messages_ = {};  // after how many of the outbox a slot is free
};

}  // namespace noria::bucketing
