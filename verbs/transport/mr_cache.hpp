// MrCache: the registrations of one protection domain, of which equal ones are one.
//
// NCCL registers one buffer for every connection of a device, and the pages need pinning once. A
// registration lives exactly as long as somebody holds it: a cache that keeps what nobody holds
// finds the old pages when an address is freed and mapped again. For the same reason only the same
// range hits, to the byte: one that is covered by another's larger registration would keep that one
// alive after its owner let go and freed the rest. Looking up costs O(log n) of n ranges, and holds
// a lock for that long; registering and deregistering hold none, so that gigabytes that are being
// pinned stop nobody. Two threads that register a range at once may both ask the device: the later
// then gives its registration back and takes the other's.
//
// Threads: any thread. Must outlive what it gave; never used on the data path.
#pragma once

#include <compare>
#include <map>
#include <memory>
#include <utility>

#include "base/mutex.hpp"
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

class MrCache;

// A share of a registration; the last one to go deregisters.
class MrShare {
 public:
  MrShare() = default;
  const ibv_mr* operator->() const { return held_->second.mr.get(); }

 private:
  friend class MrCache;
  struct Counted {
    verbs::Mr mr;
    uint64_t holders = 0;
  };
  using Entries = std::map<MemoryRange, Counted>;
  using Entry = Entries::value_type;
  struct Releaser {
    Releaser() : cache(nullptr) {}
    explicit Releaser(MrCache* of) : cache(of) {}
    void operator()(Entry* entry) const;
    MrCache* cache;
  };
  using Held = std::unique_ptr<Entry, Releaser>;

  explicit MrShare(Held held) : held_(std::move(held)) {}
  Held held_;
};

class MrCache {
 public:
  MrCache(const verbs::Api& api, ibv_pd* pd) : api_(&api), pd_(pd) {}
  ~MrCache();
  MrCache(const MrCache&) = delete;
  MrCache& operator=(const MrCache&) = delete;

  // The range of plain memory, or as `fd` exports it: `range.way` says which. The failure is the
  // device's.
  Result<MrShare> take(const MemoryRange& range, int fd = -1) NORIA_EXCLUDES(mutex_);

 private:
  friend class MrShare;
  Result<verbs::Mr> register_range(const MemoryRange& range, int fd) const;
  MrShare share(MrShare::Entry& entry) NORIA_REQUIRES(mutex_);
  void release(MrShare::Entry* entry) NORIA_EXCLUDES(mutex_);

  const verbs::Api* const api_;
  ibv_pd* const pd_;
  Mutex mutex_;
  MrShare::Entries entries_ NORIA_GUARDED_BY(mutex_);
};

}  // namespace noria::transport
