// device_copy: the copy that a network card would make into or out of the application's memory.
//
// On hardware nothing in the process orders it against the application's own accesses: a message
// from the peer does. A thread of ours does it here, and the thread sanitizer, which does not see
// the peer, would call that a race; so it is told to look away, for the copy alone.
//
// Threads: any thread.
#pragma once

#include <cstddef>
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

inline void device_copy(void* to, const void* from, size_t bytes) {
#ifdef NORIA_SOFT_IS_TSAN
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  AnnotateIgnoreWritesBegin(__FILE__, __LINE__);
#endif
  std::memcpy(to, from, bytes);
#ifdef NORIA_SOFT_IS_TSAN
  AnnotateIgnoreWritesEnd(__FILE__, __LINE__);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
#endif
}

}  // namespace noria::soft
