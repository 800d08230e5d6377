// Reading memory that a neighbour's processor fills again and again.
//
// A store into a line that another core has read must first drive that copy out; a line that the
// other core has written comes over in one transfer. So whoever has read from a slot writes one
// byte of each line, with what it holds, before the slot is given back. In us a MiB to fill and to
// read slots of 32 KiB, two cores of one cache: 147 and 25 without, 31 and 31 with; stores past the
// cache 29 and 69 (build/bin/slot_baseline). Without a common cache plain stores are three times
// as dear and gain as much.
//
// Costs nothing that was measured beside the reading, if it follows block by block.
//
// Threads: the slot's owner, while the slot is not on offer.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "base/check.hpp"

namespace noria::bucketing {

// Read and taken in such blocks, the lines are still in the first-level cache. A multiple of every
// element's size.
inline constexpr uint64_t kSlotBlockBytes = 4096;

// Makes the lines of [data, data + bytes) this core's own. `data` starts a line.
NORIA_HOT inline void take_lines(std::byte* data, uint64_t bytes) {
  constexpr uint64_t kLine = 64;
  for (uint64_t at = 0; at < bytes; at += kLine) {
    // Volatile, or the compiler would drop a store of what is there.
    volatile std::byte& first = reinterpret_cast<volatile std::byte&>(data[at]);
    first = first;
  }
}

// read(offset, bytes) for each block of the slot, whose lines are then taken.
template <class Read>
NORIA_HOT inline void read_slot(std::byte* slot, uint64_t bytes, Read read,
                                uint64_t block = kSlotBlockBytes) {
  for (uint64_t at = 0; at < bytes; at += block) {
    const uint64_t some = std::min(bytes - at, block);
    read(at, some);
    take_lines(slot + at, some);
  }
}

// Into memory that no cache holds, a copy in longer blocks is cheaper: from some 8 KiB on memcpy()
// takes the processor's own string copy, which does not fetch the lines that it overwrites. In
// turn, 2 ranks on an AMD EPYC: 25 MiB in place 6 % faster, out of place 9 %; 512 KiB, whose memory
// the caches hold, 6 to 10 % slower.
inline constexpr uint64_t kColdBlockBytes = 32768;

// `block`: kSlotBlockBytes, or kColdBlockBytes.
NORIA_HOT inline void copy_out_of_slot(std::byte* out, std::byte* slot, uint64_t bytes,
                                       uint64_t block = kSlotBlockBytes) {
  read_slot(
      slot, bytes, [&](uint64_t at, uint64_t some) { std::memcpy(out + at, slot + at, some); },
      block);
}

}  // namespace noria::bucketing
