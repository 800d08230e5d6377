// The 32 bits that travel with every piece of a message, and the record beside them. Part of the
// wire (wire.hpp): a change that an old peer would misread needs a new version there.
//
// Threads: values.
#pragma once

#include <cstdint>

#include "verbs/transport/connection.hpp"

namespace noria::transport::wire {

// Messages are numbered from 1; number n uses slot n % kWindow. Zeroed memory holds no valid
// credit until number 2^32, when every slot has long been used.
inline constexpr uint64_t kFirstSequence = 1;
static_assert((kWindow & (kWindow - 1)) == 0, "slots are taken by mask");

constexpr uint32_t slot_of(uint64_t sequence) {
  return static_cast<uint32_t>(sequence) & (kWindow - 1);
}

// How many bytes a message has, all pieces together.
using Record = uint32_t;

// The receiver cannot know how the sender cut a message, so every piece says how many there are.
// The bytes of a message are those of its pieces; or, where the pieces went before their
// immediates, what its record says: then `is_recorded` is set with each of them.
struct Immediate {
  static constexpr unsigned kSequenceBits = 20, kEpochBits = 6, kPiecesBits = 5;
  static constexpr uint32_t kRecorded = 1u << (kSequenceBits + kEpochBits);
  static constexpr unsigned kMessageBits = kSequenceBits + kEpochBits + 1;

  uint32_t sequence = 0;  // low bits, of which the lowest are the slot
  uint32_t epoch = 0;     // low bits
  uint32_t pieces = 1;
  bool is_recorded = false;

  static constexpr Immediate of(uint64_t sequence, uint32_t epoch, uint32_t pieces) {
    return {.sequence = static_cast<uint32_t>(sequence) & ((1u << kSequenceBits) - 1),
            .epoch = epoch & ((1u << kEpochBits) - 1),
            .pieces = pieces};
  }
  static constexpr Immediate recorded(uint64_t sequence, uint32_t epoch, uint32_t pieces) {
    Immediate immediate = of(sequence, epoch, pieces);
    immediate.is_recorded = true;
    return immediate;
  }
  constexpr uint32_t pack() const {
    return sequence | epoch << kSequenceBits | (is_recorded ? kRecorded : 0) |
           (pieces - 1) << kMessageBits;
  }
  static constexpr Immediate unpack(uint32_t bits) {
    return {.sequence = bits & ((1u << kSequenceBits) - 1),
            .epoch = bits >> kSequenceBits & ((1u << kEpochBits) - 1),
            .pieces = pieces_in(bits),
            .is_recorded = (bits & kRecorded) != 0};
  }
  // Parts of packed bits: the slot, the number of pieces, and all that tells a message from others
  // in its window, whatever its pieces: also kRecorded, so that one comparison finds what is usual.
  static constexpr uint32_t slot_in(uint32_t bits) { return slot_of(bits); }
  static constexpr uint32_t pieces_in(uint32_t bits) { return (bits >> kMessageBits) + 1; }
  static constexpr uint32_t message_in(uint32_t bits) { return bits & ((1u << kMessageBits) - 1); }
  static constexpr uint32_t message_of(uint64_t sequence, uint32_t epoch) {
    return of(sequence, epoch, 1).pack();
  }
  static constexpr uint32_t kNoMessage = UINT32_MAX;  // in no bits
  // Not on the wire: what a receiver adds to the name of a message that it awaits in its staging.
  static constexpr uint32_t kStaged = 1u << kMessageBits;
  friend constexpr bool operator==(const Immediate&, const Immediate&) = default;
};
static_assert(Immediate::kMessageBits + Immediate::kPiecesBits == 32);

}  // namespace noria::transport::wire
