// Staging: memory that peers map, in which small messages land until their receiver copies them to
// where they belong.
//
// A peer stores eight bytes in memory that it maps in less than 0.1 us; to have the kernel write
// them in memory that it does not map takes ten times as long. So where the provider has such
// memory, which the software HCA has and a network card does not, a receive of at most kMaxBytes of
// host memory is offered a line of it instead. Neither the sender nor the wire knows. The copy is
// made when the message is whole, before its request is done; never once the connection has failed
// or gone.
//
// Threads: the owner of the domain.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>

#include "base/check.hpp"
#include "verbs/transport/connection.hpp"
#include "verbs/transport/region_state.hpp"

namespace noria::transport {

// Copies 0 to 64 bytes: no call, and at most eight moves, which may overlap.
NORIA_HOT inline void copy_small(std::byte* to, const std::byte* from, uint64_t bytes);

class Staging {
 public:
  static constexpr uint64_t kMaxBytes = 64;

  // Null where the provider has no memory that peers map, or has none left.
  static std::unique_ptr<Staging> make(const RailSet& rails);

  // What to offer for the message in `slot`, which belongs at `to` in the region. The region lies
  // in kept storage, so that it may go meanwhile.
  NORIA_HOT uint64_t expect(uint32_t slot, const Region& region, std::byte* to) {
    places_[slot] = {&region, to};
    return memory_->address() + slot * kMaxBytes;
  }
  NORIA_HOT const std::array<uint32_t, kMaxRails>& rkeys() const { return memory_->rkeys(); }
  // Copies what arrived. False, and nothing is written, if its memory was deregistered.
  NORIA_HOT bool deliver(uint32_t slot, uint64_t bytes) const;

 private:
  struct Place {
    const Region* region = nullptr;
    std::byte* to = nullptr;
  };

  explicit Staging(std::unique_ptr<RegionState> memory) : memory_(std::move(memory)) {}

  std::unique_ptr<RegionState> memory_;
  std::array<Place, kWindow> places_;
};

template <size_t kBytes>
NORIA_HOT inline void copy_ends(std::byte* to, const std::byte* from, uint64_t bytes) {
  std::memcpy(to, from, kBytes);
  std::memcpy(to + bytes - kBytes, from + bytes - kBytes, kBytes);
}

inline void copy_small(std::byte* to, const std::byte* from, uint64_t bytes) {
  if (bytes >= 32) return copy_ends<32>(to, from, bytes);
  if (bytes >= 16) return copy_ends<16>(to, from, bytes);
  if (bytes >= 8) return copy_ends<8>(to, from, bytes);
  if (bytes >= 4) return copy_ends<4>(to, from, bytes);
  if (bytes >= 2) return copy_ends<2>(to, from, bytes);
  if (bytes == 1) *to = *from;
}

inline bool Staging::deliver(uint32_t slot, uint64_t bytes) const {
  const Place& place = places_[slot];
  // What lies in its storage now may be another.
  const RegionState* const region = place.region->state();
  if (region == nullptr ||
      !region->contains(static_cast<uint64_t>(place.to - region->base()), bytes)) [[unlikely]]
    return false;
  copy_small(place.to, memory_->base() + slot * kMaxBytes, bytes);
  return true;
}

}  // namespace noria::transport
