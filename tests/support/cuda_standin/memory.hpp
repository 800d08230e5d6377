// The memory of the devices, and host memory that they know.
//
// A device address is one that the host cannot touch: whoever reads a gradient without a copy dies
// on the spot. The bytes lie at a fixed distance from it. No address is given out twice, so what is
// used after it was freed is known as that.
//
// Threads: one at a time; backing() any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace noria::standin {

struct Context;

enum class MemoryKind { device, pinned };

struct Allocation {
  uint64_t first = 0;
  size_t bytes = 0;
  MemoryKind kind = MemoryKind::device;
  Context* context = nullptr;
  bool is_registered_by_user = false;  // pinned, but the memory is the user's own
  bool is_freed = false;
};

class Memory {
 public:
  Memory();

  // Holds bytes that are not numbers. 0: the address space is used up.
  uint64_t allocate(size_t bytes, Context* context);
  void* allocate_pinned(size_t bytes, Context* context);
  void add_pinned(void* address, size_t bytes, Context* context);
  void free(Allocation* allocation);
  // The one that `address` lies in, freed or not; null: none.
  Allocation* find(uint64_t address);
  // Of device memory the bytes behind the address; else the address itself.
  static void* backing(uint64_t address);
  size_t alive() const;

 private:
  std::map<uint64_t, Allocation> allocations_;
  uint64_t next_;
};

}  // namespace noria::standin
