#include "verbs/soft/memory_table.hpp"

#include <errno.h>
#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include "base/units.hpp"

namespace noria::soft {

MemoryTable::MemoryTable(SharedSegment& shared) : shared_(shared), allocations_(kMaxAllocations) {}

std::optional<uint32_t> MemoryTable::add(const Request& request) {
  MutexLock lock(mutex_);
  // A fresh index while there are some: the longer a key stays dead, the surer is its misuse seen.
  uint32_t key = 0;
  if (next_index_ < kMaxMrs - 1) {
    key = next_index_++ << 16 | 1;
  } else if (!free_keys_.empty()) {
    const uint32_t old = free_keys_.front();
    free_keys_.pop_front();
    const uint32_t generation = (old & 0xffff) == 0xffff ? 1 : (old & 0xffff) + 1;
    key = (old & 0xffff0000u) | generation;
  } else {
    return std::nullopt;
  }

  SharedMr& mr = shared_.mrs[key >> 16];
  constexpr auto kRelaxed = std::memory_order_relaxed;  // published by `key`
  uint32_t allocation = 0;
  uint64_t offset = 0;
  for (size_t i = 0; i < allocations_high_; ++i) {
    Allocation& each = allocations_[i];
    const auto base = reinterpret_cast<uint64_t>(each.base.get());
    if (each.id == 0 || request.address < base || request.address - base > each.bytes ||
        request.length > each.bytes - (request.address - base))
      continue;
    allocation = each.id;
    offset = request.address - base;
    ++each.regions;
    break;
  }
  mr.address.store(request.address, kRelaxed);
  mr.iova.store(request.iova, kRelaxed);
  mr.length.store(request.length, kRelaxed);
  mr.access.store(request.access, kRelaxed);
  mr.pd.store(request.pd, kRelaxed);
  mr.is_posted.store(request.is_posted ? 1 : 0, kRelaxed);
  mr.allocation.store(allocation, kRelaxed);
  mr.allocation_offset.store(offset, kRelaxed);
  mr.key.store(key, std::memory_order_release);  // publishes the entry; pairs with find_range()
  return key;
}

void MemoryTable::revoke(uint32_t key) {
  // seq_cst: ordered before the reader of marks that follows; pairs with the initiator's mark.
  shared_.mrs[key >> 16].key.store(0, std::memory_order_seq_cst);
}

void MemoryTable::recycle(uint32_t key) {
  MutexLock lock(mutex_);
  // relaxed: written under the lock.
  const uint32_t id = shared_.mrs[key >> 16].allocation.load(std::memory_order_relaxed);
  if (Allocation& in = allocations_[id % kMaxAllocations]; id != 0 && in.id == id) --in.regions;
  free_keys_.push_back(key);
}

const Allocation* MemoryTable::allocate(size_t bytes) {
  const size_t size = align_up<size_t>(bytes == 0 ? 1 : bytes, 4096);
  Fd fd = make_memory_file("noria-memory", size);
  if (!fd.is_open()) return nullptr;
  void* base = map_shared(fd.get(), size, true);
  if (base == nullptr) return nullptr;
  // As the pages of a network card's registered memory (ibv_fork_init).
  ::madvise(base, size, MADV_DONTFORK);
  Mapping<uint8_t> mapping(static_cast<uint8_t*>(base), Unmapper{size});
  MutexLock lock(mutex_);
  const auto free = std::find_if(allocations_.begin(), allocations_.end(),
                                 [](const Allocation& each) { return each.id == 0; });
  if (free == allocations_.end()) {
    errno = ENOMEM;
    return nullptr;
  }
  const auto index = static_cast<uint32_t>(free - allocations_.begin());
  free->id = next_serial_++ * kMaxAllocations + index;
  free->bytes = size;
  allocations_high_ = std::max<size_t>(allocations_high_, index + 1);
  free->fd = std::move(fd);
  free->base = std::move(mapping);
  return &*free;
}

int MemoryTable::take(const void* base, Allocation* out) {
  MutexLock lock(mutex_);
  const auto found = std::find_if(allocations_.begin(), allocations_.end(), [base](const auto& a) {
    return a.id != 0 && a.base.get() == base;
  });
  if (found == allocations_.end()) return EINVAL;
  if (found->regions != 0) return EBUSY;
  *out = std::exchange(*found, Allocation{});
  return 0;
}

}  // namespace noria::soft
