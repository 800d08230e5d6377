// MrCache: the registrations of one protection domain, of which equal ones are one.
//
// NCCL registers one buffer for every connection of a device, and the pages need pinning once. A
// registration lives exactly as long as somebody holds it: a cache that keeps what nobody holds
// finds the old pages when an address is freed and mapped again. For the same reason only the same
// range hits, to the byte: one that is covered by another's larger registration would keep that one
// alive after its owner let go and freed the rest. Looking up costs what base/shared_map.hpp says;
// registering and deregistering hold no lock, so that gigabytes that are being pinned stop nobody.
// Two threads that register a range at once may both ask the device: the later then gives its
// registration back and takes the other's.
//
// Threads: any thread. Must outlive what it gave; never used on the data path.
#pragma once

#include <compare>

#include "base/shared_map.hpp"
#include "verbs/mr.hpp"

namespace noria::transport {

// What is registered, and by what way.
struct MemoryRange {
  enum class Way : uint8_t { address, descriptor };

  uint64_t address = 0;
  uint64_t bytes = 0;
  Way way = Way::address;
  uint64_t offset = 0;  // in the descriptor
  verbs::Ordering ordering = verbs::Ordering::strict;

  friend constexpr auto operator<=>(const MemoryRange&, const MemoryRange&) = default;
};

class MrCache {
  using Registrations = SharedMap<MemoryRange, verbs::Mr>;

 public:
  using Share = Registrations::Share;  // of a registration; the last one to go deregisters

  MrCache(const verbs::Api& api, ibv_pd* pd) : api_(&api), pd_(pd) {}
  ~MrCache();
  MrCache(const MrCache&) = delete;
  MrCache& operator=(const MrCache&) = delete;

  // The range of plain memory, or as `fd` exports it: `range.way` says which. The failure is the
  // device's.
  Result<Share> take(const MemoryRange& range, int fd = -1);

 private:
  Result<verbs::Mr> register_range(const MemoryRange& range, int fd) const;

  const verbs::Api* const api_;
  ibv_pd* const pd_;
  Registrations registrations_;
};

using MrShare = MrCache::Share;

}  // namespace noria::transport
