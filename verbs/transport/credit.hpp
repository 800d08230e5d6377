// Credits in memory that the device writes while the sender looks.
//
// read_credit() is the only way to look at a credit slot. It answers false until both 32-byte
// halves carry the wanted sequence number: the halves of one 64-byte write may land in either
// order. Once it is true the slot is not written again before its message was received, so the copy
// cannot tear.
//
// Threads: one reader; the writer is a device or another process.
#pragma once

#include <atomic>

#include "base/check.hpp"
#include "verbs/transport/wire.hpp"

namespace noria::transport {

NORIA_HOT inline bool read_credit(wire::Credit& slot, uint64_t sequence, wire::Credit* out) {
  const auto wanted = static_cast<uint32_t>(sequence);
  // acquire: pairs with the order in which the device lands a half; the words below are read after.
  if (std::atomic_ref(slot.sequence).load(std::memory_order_acquire) != wanted) return false;
  if (std::atomic_ref(slot.sequence_again).load(std::memory_order_acquire) != wanted) return false;
  // relaxed: ordered behind the two loads above, and nobody writes the slot any more.
  out->address = std::atomic_ref(slot.address).load(std::memory_order_relaxed);
  out->bytes = std::atomic_ref(slot.bytes).load(std::memory_order_relaxed);
  for (unsigned i = 0; i < kMaxRails; ++i)
    out->rkeys[i] = std::atomic_ref(slot.rkeys[i]).load(std::memory_order_relaxed);
  return true;
}

inline wire::Credit make_credit(uint64_t sequence, uint64_t address, uint64_t bytes,
                                const std::array<uint32_t, kMaxRails>& rkeys) {
  wire::Credit credit;
  credit.address = address;
  credit.bytes = bytes;
  credit.rkeys = rkeys;
  credit.sequence = credit.sequence_again = static_cast<uint32_t>(sequence);
  return credit;
}

}  // namespace noria::transport
