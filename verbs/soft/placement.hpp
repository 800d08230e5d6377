// Placement: which bytes of a request move next, and whether now.
//
// Early placement is kind: bytes move at once and in ascending order. Late placement uses all the
// freedom that the specification leaves to a device: nothing moves inside the post; queue pairs are
// served in random order; a request goes in pieces from its end to its start, each in another turn.
// So a program that looks before its completion, that counts on the last byte landing last, or that
// reuses a buffer too soon fails in its tests rather than on hardware.
//
// What both keep, since devices do: requests of a queue pair take effect one after another, and no
// aligned 32-byte word of the target is split between two pieces.
//
// Threads: values; any thread.
#pragma once

#include <algorithm>
#include <cstdint>

namespace noria::soft {

// A part of a request: `bytes` from `offset` on.
struct Cut {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

// The next part of a request of `bytes`, `moved` of which are through; at most `limit` bytes.
constexpr Cut next_cut_early(uint64_t bytes, uint64_t moved, uint64_t limit) {
  return {moved, std::min(bytes - moved, limit)};
}

constexpr uint64_t kWholeWord = 32;
constexpr uint64_t kLatePieces = 4;

// The same from the end, about a quarter of the request at a time, cut where the target's address
// is a multiple of 32.
constexpr Cut next_cut_late(uint64_t bytes, uint64_t moved, uint64_t limit, uint64_t address) {
  const uint64_t end = bytes - moved;
  const uint64_t wanted = std::min(std::max(bytes / kLatePieces, kWholeWord), limit);
  if (end <= wanted) return {0, end};
  const uint64_t start = end - wanted;
  const uint64_t beyond = (address + start) % kWholeWord;  // up to the next boundary
  const uint64_t aligned = beyond == 0 ? start : start + (kWholeWord - beyond);
  return aligned < end ? Cut{aligned, end - aligned} : Cut{start, wanted};
}

// A sequence of coin flips that is the same for the same seed (xorshift).
class Coin {
 public:
  explicit constexpr Coin(uint64_t seed) : state_(seed * 2 + 1) {}
  constexpr bool flip() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return (state_ >> 33 & 1) != 0;
  }

 private:
  uint64_t state_;
};

}  // namespace noria::soft
