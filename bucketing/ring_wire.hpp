// What neighbours on the ring tell each other beside data: fixed width, little-endian, trivially
// copyable, zero where reserved.
//
// On the reduce stream each collective begins with its RingHeader. Where the right neighbour reads,
// RingNotices follow until they have announced every item; where it is sent chunks, the chunks
// follow, the first of a small collective in one message with the header. What fits into a line
// (ring_line.hpp) goes without all that; between two collectives there may be RingWakes. The gather
// stream carries finished chunks only.
//
// Threads: values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "bucketing/collective.hpp"

namespace noria::bucketing {

inline constexpr uint32_t kRingWireVersion = 4;

enum class RingMessage : uint8_t { header = 1, notice = 2, wake = 3 };

// RingHeader::flags
inline constexpr uint8_t kAllReady = 1;   // each item of step 0 may be read at once
inline constexpr uint8_t kHasRemote = 2;  // RingHeader::part is set, and sent
// The first chunk follows in the same message, kHeaderRoom after its start.
inline constexpr uint8_t kCarriesChunk = 4;

struct RingHeader {
  RingMessage type = RingMessage::header;
  Kind kind = Kind::all_reduce;
  uint8_t flags = 0;
  uint8_t dtype = 0;  // of the first part, as are op and count: for the text of a mismatch
  uint8_t op = 0;
  uint8_t reserved[3] = {};
  uint64_t sequence = 0;
  uint64_t fingerprint = 0;
  uint64_t count = 0;
  uint32_t parts = 0;
  int32_t root = 0;
  uint64_t reserved_2 = 0;
  RemotePart part;
};
static_assert(std::is_trivially_copyable_v<RingHeader>);
static_assert(sizeof(RemotePart) == 80 && sizeof(RingHeader) == 128);
inline constexpr uint32_t kShortHeaderBytes = offsetof(RingHeader, part);
static_assert(kShortHeaderBytes == 48);
// A whole line, so that the chunk behind it starts one.
inline constexpr uint32_t kHeaderRoom = 64;

// Items before `ready`, in the order of the reduce phase, may be read.
struct RingNotice {
  RingMessage type = RingMessage::notice;
  uint8_t reserved[7] = {};
  uint64_t ready = 0;
};
static_assert(std::is_trivially_copyable_v<RingNotice> && sizeof(RingNotice) == 16);

// A line landed: whoever sleeps, look.
struct RingWake {
  RingMessage type = RingMessage::wake;
  uint8_t reserved[7] = {};
};
static_assert(std::is_trivially_copyable_v<RingWake> && sizeof(RingWake) == 8);

}  // namespace noria::bucketing
