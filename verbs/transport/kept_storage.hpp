// Storage of the objects that NCCL holds by a pointer, or that hold its requests: cleared when the
// object goes, and kept for the next one of its size.
//
// The data path takes NCCL's pointers as they are, for looking each up would cost more than the
// message. So one that is closed still leads to storage of ours, in which nothing stands: no kind,
// no request, no memory, and the call is refused with a line. Only when another object was made
// in its place it leads there. What is kept is as much as was open at once; free_kept_storage()
// gives it back.
//
// Threads: any thread.
#pragma once

#include <cstddef>
#include <new>

namespace noria::transport {

// Of at most kStorageSizes different sizes.
inline constexpr size_t kStorageSizes = 8;
inline constexpr size_t kStorageAlignment = 64;
void* take_storage(size_t bytes);
void keep_storage(void* storage, size_t bytes);
// When nothing of it is in use, nor will be.
void free_kept_storage();

// What is derived from it lies in such storage.
struct InKeptStorage {
  static void* operator new(size_t bytes) { return take_storage(bytes); }
  static void operator delete(void* storage, size_t bytes) { keep_storage(storage, bytes); }
  // Of what is a cache line or begins with one.
  static void* operator new(size_t bytes, std::align_val_t) { return take_storage(bytes); }
  static void operator delete(void* storage, size_t bytes, std::align_val_t) {
    keep_storage(storage, bytes);
  }
};

}  // namespace noria::transport
