// MemoryTable: the memory regions of this process, and the allocations that peers map.
//
// A key is index << 16 | generation; an index that is used again gets a new generation, so that an
// old key stays dead. Indices are reused as late as possible. find() is all that the data path
// needs, of our own table and of a peer's.
//
// Threads: any thread; the registry is locked, find() is not.
#pragma once

#include <deque>
#include <optional>
#include <vector>

#include "base/mutex.hpp"
#include "verbs/soft/segment.hpp"

namespace noria::soft {

struct Allocation {
  uint32_t id = 0;  // serial << 10 | index; never 0
  size_t bytes = 0;
  uint32_t regions = 0;  // that lie in it
  Fd fd;
  Mapping<uint8_t> base;
};

class MemoryTable {
 public:
  explicit MemoryTable(SharedSegment& shared);

  struct Request {
    uint32_t pd;
    uint64_t address, length, iova;
    uint32_t access;
    bool is_posted;  // writes to it are kept back: posted_writes.hpp
  };
  // The key, or nothing if the table is full.
  std::optional<uint32_t> add(const Request& request) NORIA_EXCLUDES(mutex_);
  // Revokes the key: whoever looks it up from now on fails. The index stays taken until recycle().
  void revoke(uint32_t key);
  void recycle(uint32_t key) NORIA_EXCLUDES(mutex_);

  // Memory that peers map; null with errno set if there is none to be had. Valid until take(). A
  // forked child does not have it: it would write into what peers believe to be its parent's.
  const Allocation* allocate(size_t bytes) NORIA_EXCLUDES(mutex_);
  // Moves the allocation with this base out of the table. 0, EINVAL if there is none, or EBUSY
  // while a region lies in it: a peer may be in the middle of it, and unmaps it when told.
  int take(const void* base, Allocation* out) NORIA_EXCLUDES(mutex_);
  // Calls `tell(id, bytes, fd)` for each allocation.
  template <class Tell>
  void for_each_allocation(Tell tell) NORIA_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (const auto& allocation : allocations_)
      if (allocation.id != 0) tell(allocation.id, allocation.bytes, allocation.fd.get());
  }

 private:
  SharedSegment& shared_;
  Mutex mutex_;
  uint32_t next_index_ NORIA_GUARDED_BY(mutex_) = 1;
  std::deque<uint32_t> free_keys_ NORIA_GUARDED_BY(mutex_);  // the last key of each free index
  uint32_t next_serial_ NORIA_GUARDED_BY(mutex_) = 1;
  std::vector<Allocation> allocations_ NORIA_GUARDED_BY(mutex_);
  size_t allocations_high_ NORIA_GUARDED_BY(mutex_) = 0;  // from here on none was ever made
};

// A range of memory, resolved from a key.
struct Range {
  uint64_t address;            // in its owner's address space
  uint64_t allocation_offset;  // within `allocation`
  uint32_t allocation;         // 0: in none
  // How its owner finds it again.
  uint32_t key;
  uint32_t access;
  uint32_t is_posted;
  uint64_t iova;
};

// Looks `bytes` at `iova` up in the owner's table; nothing if the key is stale, of another
// protection domain, or does not cover the range with that access.
inline std::optional<Range> find_range(const SharedSegment& owner, uint32_t key, uint32_t pd,
                                       uint32_t access, uint64_t iova, uint64_t bytes) {
  const SharedMr& mr = owner.mrs[key >> 16];
  constexpr auto kRelaxed = std::memory_order_relaxed;  // ordered by `key`
  // Pairs with add(); seq_cst because a mark comes before it, and revoke() must not slip between.
  if (mr.key.load(std::memory_order_seq_cst) != key || key == 0) return std::nullopt;
  const uint64_t offset = iova - mr.iova.load(kRelaxed);
  const uint64_t length = mr.length.load(kRelaxed);
  if (mr.pd.load(kRelaxed) != pd || (mr.access.load(kRelaxed) & access) != access ||
      offset > length || bytes > length - offset)
    return std::nullopt;
  return Range{mr.address.load(kRelaxed) + offset,
               mr.allocation_offset.load(kRelaxed) + offset,
               mr.allocation.load(kRelaxed),
               key,
               access,
               mr.is_posted.load(kRelaxed),
               iova};
}

}  // namespace noria::soft
