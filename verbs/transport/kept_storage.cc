#include "verbs/transport/kept_storage.hpp"

#include <array>
#include <cstdlib>
#include <cstring>

#include "base/check.hpp"
#include "base/mutex.hpp"
#include "base/units.hpp"

namespace noria::transport {
namespace {

// Stands before each object.
struct alignas(kStorageAlignment) Block {
  Block* next;
};

struct Blocks {
  size_t bytes = 0;  // of each object; 0: not in use
  Block* first = nullptr;
};

constinit Mutex mutex;
constinit std::array<Blocks, kStorageSizes> all NORIA_GUARDED_BY(mutex){};

Blocks& blocks_of(size_t bytes) NORIA_REQUIRES(mutex) {
  for (Blocks& blocks : all) {
    if (blocks.bytes == 0) blocks.bytes = bytes;
    if (blocks.bytes == bytes) return blocks;
  }
  NORIA_CHECK(false, "more sizes of objects than kStorageSizes");
  return all[0];
}

}  // namespace

void* take_storage(size_t bytes) {
  {
    const MutexLock lock(mutex);
    Blocks& blocks = blocks_of(bytes);
    if (Block* const block = blocks.first; block != nullptr) {
      blocks.first = block->next;
      return block + 1;
    }
  }
  void* const made =
      std::aligned_alloc(alignof(Block), align_up(sizeof(Block) + bytes, alignof(Block)));
  NORIA_CHECK(made != nullptr, "no memory for an object that is held by a pointer");
  return static_cast<Block*>(made) + 1;
}

void keep_storage(void* storage, size_t bytes) {
  if (storage == nullptr) return;
  std::memset(storage, 0, bytes);
  auto* const block = static_cast<Block*>(storage) - 1;
  const MutexLock lock(mutex);
  Blocks& blocks = blocks_of(bytes);
  block->next = blocks.first;
  blocks.first = block;
}

void free_kept_storage() {
  const MutexLock lock(mutex);
  for (Blocks& blocks : all)
    while (Block* const block = blocks.first) {
      blocks.first = block->next;
      std::free(block);
    }
}

}  // namespace noria::transport
