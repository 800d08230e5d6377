#include "tests/support/cuda_standin/memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

namespace noria::standin {

namespace {

// Addresses are not used again. More than this twice is too much for valgrind.
constexpr uint64_t kSpace = 1ULL << 34U;
constexpr uint64_t kAlignment = 512;

uint64_t reserve(int protection) {
  void* const space =
      mmap(nullptr, kSpace, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (space == MAP_FAILED) std::abort();
  return reinterpret_cast<uint64_t>(space);
}

// Never unmapped: a device outlives the program's last look at it.
struct Spaces {
  uint64_t seen = reserve(PROT_NONE);
  uint64_t real = reserve(PROT_READ | PROT_WRITE);
};

const Spaces& spaces() {
  static const Spaces both;
  return both;
}

}  // namespace

Memory::Memory() : next_(spaces().seen + kAlignment) {}

uint64_t Memory::allocate(size_t bytes, Context* context) {
  const uint64_t first = next_;
  // What follows an allocation belongs to nobody.
  const uint64_t span = (bytes + kAlignment - 1) / kAlignment * kAlignment + kAlignment;
  if (span < bytes || first + span > spaces().seen + kSpace) return 0;
  next_ += span;
  allocations_[first] = {.first = first, .bytes = bytes, .context = context};
  memset(backing(first), 0xFF, bytes);
  return first;
}

void* Memory::allocate_pinned(size_t bytes, Context* context) {
  void* const address = std::aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
  if (address == nullptr) return nullptr;
  memset(address, 0xFF, bytes);
  const auto first = reinterpret_cast<uint64_t>(address);
  allocations_[first] = {
      .first = first, .bytes = bytes, .kind = MemoryKind::pinned, .context = context};
  return address;
}

void Memory::add_pinned(void* address, size_t bytes, Context* context) {
  const auto first = reinterpret_cast<uint64_t>(address);
  allocations_[first] = {.first = first,
                         .bytes = bytes,
                         .kind = MemoryKind::pinned,
                         .context = context,
                         .is_registered_by_user = true};
}

void Memory::free(Allocation* allocation) {
  if (allocation->kind == MemoryKind::device) {
    // Pages of its own only; what shares them with a neighbour keeps its last bytes.
    const uint64_t first = (allocation->first + 4095) / 4096 * 4096;
    const uint64_t end = (allocation->first + allocation->bytes) / 4096 * 4096;
    if (first < end) madvise(backing(first), end - first, MADV_DONTNEED);
    allocation->is_freed = true;
    return;
  }
  if (!allocation->is_registered_by_user)
    std::free(reinterpret_cast<void*>(allocation->first));  // the host's addresses come again
  allocations_.erase(allocation->first);
}

Allocation* Memory::find(uint64_t address) {
  auto next = allocations_.upper_bound(address);
  if (next == allocations_.begin()) return nullptr;
  Allocation& found = std::prev(next)->second;
  return address < found.first + std::max<size_t>(found.bytes, 1) ? &found : nullptr;
}

void* Memory::backing(uint64_t address) {
  const Spaces& both = spaces();
  if (address < both.seen || address >= both.seen + kSpace) return reinterpret_cast<void*>(address);
  return reinterpret_cast<void*>(address - both.seen + both.real);
}

size_t Memory::alive() const {
  return static_cast<size_t>(
      std::count_if(allocations_.begin(), allocations_.end(),
                    [](const auto& entry) { return !entry.second.is_freed; }));
}

}  // namespace noria::standin
