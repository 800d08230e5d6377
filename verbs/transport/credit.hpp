// Credits in memory that the device writes while the sender looks.
//
// read_credit() is the only way to look at a credit slot. It answers false until both 32-byte
// halves carry the wanted sequence number: the halves of one 64-byte write may land in either
// order. Once it is true the slot is not written again before its message was received, so the copy
// cannot tear.
//
// Threads: one reader; the writer is a device or another process.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/check.hpp"
#include "verbs/transport/wire.hpp"

namespace noria::transport {

// A credit that was found whole; false for *not yet*. Borrows the slot until its message was sent.
class CreditView {
 public:
  explicit operator bool() const { return slot_ != nullptr; }
  // relaxed: ordered behind the acquire loads of read_credit(); nobody writes the slot any more.
  uint64_t address() const {
    return std::atomic_ref(slot_->address).load(std::memory_order_relaxed);
  }
  uint32_t bytes() const { return std::atomic_ref(slot_->bytes).load(std::memory_order_relaxed); }
  uint64_t match() const { return std::atomic_ref(slot_->match).load(std::memory_order_relaxed); }
  // By the word of the credit that it is: word_of_key() of the rail.
  uint32_t rkey(unsigned word) const {
    return std::atomic_ref(reinterpret_cast<uint32_t*>(slot_)[word])
        .load(std::memory_order_relaxed);
  }

 private:
  friend CreditView read_credit(wire::Credit& slot, uint64_t sequence);
  explicit CreditView(wire::Credit* slot) : slot_(slot) {}
  wire::Credit* slot_;  // atomic_ref takes no const object in C++20
};

NORIA_HOT inline CreditView read_credit(wire::Credit& slot, uint64_t sequence) {
  const auto wanted = static_cast<uint32_t>(sequence);
  // acquire: pairs with the order in which the device lands a half; the rest is read after.
  const bool is_whole =
      std::atomic_ref(slot.sequence).load(std::memory_order_acquire) == wanted &&
      std::atomic_ref(slot.sequence_again).load(std::memory_order_acquire) == wanted;
  return CreditView(is_whole ? &slot : nullptr);
}

// Makes `credit` that of message `sequence`.
NORIA_HOT inline void set_credit(wire::Credit* credit, uint64_t sequence, uint64_t match,
                                 uint64_t address, uint64_t bytes,
                                 const std::array<uint32_t, kMaxRails>& rkeys) {
  constexpr unsigned kFirst = wire::Credit::kFirstKeys;
  credit->address = address;
  credit->match = match;
  credit->bytes = static_cast<uint32_t>(std::min<uint64_t>(bytes, UINT32_MAX));
  // Never a call, as copies of ranges that might overlap can be.
  std::memcpy(credit->first_keys.data(), rkeys.data(), sizeof credit->first_keys);
  std::memcpy(credit->other_keys.data(), rkeys.data() + kFirst, sizeof credit->other_keys);
  credit->sequence = credit->sequence_again = static_cast<uint32_t>(sequence);
}

}  // namespace noria::transport
