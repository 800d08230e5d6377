// device_copy: the copy that a network card would make into or out of the application's memory;
// device_atomic: its atomics there.
//
// On hardware nothing in the process orders it against the application's own accesses: a message
// from the peer does. A thread of ours does it here, and the thread sanitizer, which does not see
// the peer, would call that a race; so it is told to look away, for the copy alone.
//
// Threads: any thread.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__SANITIZE_THREAD__)
#define NORIA_SOFT_IS_TSAN 1
#elif defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define NORIA_SOFT_IS_TSAN 1
#endif
#endif

#ifdef NORIA_SOFT_IS_TSAN
extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
void AnnotateIgnoreWritesBegin(const char* file, int line);
void AnnotateIgnoreWritesEnd(const char* file, int line);
}
#endif

namespace noria::soft {

// While it lives, what this thread does to the application's memory is the device's doing.
class AsDevice {
 public:
#ifdef NORIA_SOFT_IS_TSAN
  AsDevice() {
    AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
    AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
  }
  ~AsDevice() {
    AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
    AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  }
#else
  AsDevice() {}
  ~AsDevice() {}
#endif
  AsDevice(const AsDevice&) = delete;
  AsDevice& operator=(const AsDevice&) = delete;
};

inline void device_copy(void* to, const void* from, size_t bytes) {
  const AsDevice as_device;
  std::memcpy(to, from, bytes);
}

struct AtomicOperands {
  uint64_t compare_add = 0;  // what to add, or what must be there
  uint64_t swap = 0;         // what is put in its place
};

// The two atomics of the specification on an aligned word; returns what was there before. Atomic
// for every processor of the host.
inline uint64_t device_atomic(uint8_t* at, bool is_swap, const AtomicOperands& operands) {
  const AsDevice as_device;
  std::atomic_ref<uint64_t> word(*reinterpret_cast<uint64_t*>(at));
  if (!is_swap) return word.fetch_add(operands.compare_add, std::memory_order_seq_cst);
  uint64_t found = operands.compare_add;
  word.compare_exchange_strong(found, operands.swap, std::memory_order_seq_cst);
  return found;
}

}  // namespace noria::soft
