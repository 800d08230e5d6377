// Segment: the shared memory of one process, mapped; and Allocation: memory that peers map.
//
// The owner creates it over a memfd and maps it for writing; peers map the same descriptor
// read-only. Rings are carved from it in powers of two and given back to the kernel when freed.
//
// Threads: create and map from any thread; carve() and release() under the engine's lock.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "base/fd.hpp"
#include "base/result.hpp"
#include "verbs/soft/shared_layout.hpp"

namespace noria::soft {

struct Unmapper {
  size_t bytes = 0;
  void operator()(const void* base) const;
};
template <class T>
using Mapping = std::unique_ptr<T, Unmapper>;

// Maps `bytes` of `fd`; null on failure (errno says why), or if the file is shorter, or its owner
// could make it so: who looks at it would fault.
void* map_shared(int fd, size_t bytes, bool writable);

// Creates a memfd of `bytes`; not open on failure.
Fd make_memory_file(const char* name, size_t bytes);

class Segment {
 public:
  static Result<Segment> create();

  SharedSegment& operator*() const { return *memory_; }
  SharedSegment* operator->() const { return memory_.get(); }
  int fd() const { return fd_.get(); }

  // Zeroed room in `rings`; returns its offset there, or kNoRoom.
  uint64_t carve(uint64_t bytes);
  void release(uint64_t offset, uint64_t bytes);
  static constexpr uint64_t kNoRoom = UINT64_MAX;

 private:
  Segment(Fd fd, SharedSegment* memory)
      : fd_(std::move(fd)), memory_(memory, Unmapper{sizeof(SharedSegment)}) {}
  Fd fd_;
  Mapping<SharedSegment> memory_;
  uint64_t carved_ = 0;
  std::array<std::vector<uint64_t>, 40> free_;  // by power of two
};

}  // namespace noria::soft
