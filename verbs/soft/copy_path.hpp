// How bytes move between our memory and a peer's.
//
// Three ways, from cheap to dear: the peer is this process (a plain copy), the range lies in memory
// that the peer lets us map (loads and stores), or cross-memory attach (a system call of 0.5 to
// 2 us). An initiator calls copy() under its mark, in steps of at most kStepBytes, so that whoever
// revokes something waits shortly.
//
// Threads: any thread.
#pragma once

#include <sys/uio.h>

#include <cstdint>
#include <span>

#include "verbs/soft/memory_table.hpp"
#include "verbs/soft/peer.hpp"

namespace noria::soft {

constexpr uint64_t kStepBytes = 256 << 10;

enum class Direction { to_peer, from_peer };

enum class CopyResult {
  done,
  fault,    // some page at either end is not there
  gone,     // the peer's process is dead
  refused,  // the kernel does not let us touch the peer
};

// Where `bytes` of the range can be reached with loads and stores, or null.
inline uint8_t* direct_address(const Peer& peer, const Range& range, uint64_t bytes) {
  if (peer.is_self()) return reinterpret_cast<uint8_t*>(range.address);
  if (range.allocation == 0) return nullptr;
  return peer.mapped(range.allocation, range.allocation_offset, bytes);
}

// Moves all bytes of `local`, in order, to or from `remote`.
CopyResult copy(const Peer& peer, Direction direction, std::span<const iovec> local,
                const Range& remote, uint64_t bytes);

// The same for many ranges of the peer's memory at once, by attach alone: `bytes`, in order. How
// many are through, from the first on; where not all are, copy() says why.
uint64_t copy_many(const Peer& peer, Direction direction, std::span<const iovec> local,
                   std::span<const iovec> remote, uint64_t bytes);

// A copy whose 8-byte words become visible in ascending order where source and target allow it
// (up to kOrderedBytes), so that small records can validate themselves.
constexpr uint64_t kOrderedBytes = 64;
void copy_ordered(uint8_t* to, const uint8_t* from, uint64_t bytes);

}  // namespace noria::soft
