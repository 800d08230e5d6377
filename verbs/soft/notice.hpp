// Notices: what an initiator tells its target of messages, and the ring that they lie in.
//
// The ring is part of the initiator's segment (shared_layout.hpp), which its target reads. It is
// given out zeroed, and no number comes twice in it, so that the number alone says whether a notice
// is there: the target polls one cache line, which brings a small message with it.
//
// Threads: the initiator writes under Qp::exec; the target reads under its receive CQ's list lock.
#pragma once

#include <bit>
#include <cstdint>

#include "verbs/soft/shared_layout.hpp"

namespace noria::soft {

// One message that used up one receive.
struct alignas(64) Notice {
  Word64 number;  // of that receive, plus one; written last, and publishes the rest. 0: none yet
  uint32_t bytes;
  uint32_t imm;
  uint16_t status;  // ibv_wc_status at the receiver
  uint16_t flags;
  uint8_t payload[kInNotice];
};
static_assert(sizeof(Notice) == 64, "a small message is one cache line");
enum NoticeFlag : uint16_t { kHasImm = 1, kIsWrite = 2, kIsInNotice = 4, kIsInPlace = 8 };

// The ring of a target with `depth` receives, a power of two: the notices, behind them room for a
// small message each. Its word: the offset in `rings` | log2(depth).
constexpr uint64_t kRingMask = alignof(Notice) - 1;
constexpr uint64_t make_ring_word(uint64_t offset, uint32_t depth) {
  return offset | static_cast<uint64_t>(std::countr_zero(depth));
}
constexpr uint64_t ring_offset(uint64_t ring) { return ring & ~kRingMask; }
constexpr uint64_t ring_depth(uint64_t ring) { return uint64_t{1} << (ring & kRingMask); }
constexpr uint64_t ring_bytes(uint64_t depth) { return depth * (sizeof(Notice) + kInPlace); }

}  // namespace noria::soft
