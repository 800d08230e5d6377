// NORIA_CHECK: for what cannot happen. Always on; prints one line with file and line, then aborts.
// NORIA_DCHECK: the same in debug builds only, for conditions on the hot path.
//
// What can happen (bad input, a lost peer, a full disk) is a Status, never a CHECK: this library
// lives inside other people's processes.
//
// Threads: any thread.
#pragma once

#include <cstdio>
#include <cstdlib>

// Marks the data path. Inside: no allocation, lock, system call, virtual call or log.
// `grep -rn NORIA_HOT` is the data path.
#define NORIA_HOT [[gnu::hot]]
#define NORIA_COLD [[gnu::cold, gnu::noinline]]

namespace noria::detail {

[[noreturn]] NORIA_COLD inline void check_failed(const char* file, int line, const char* condition,
                                                 const char* text) {
  std::fprintf(stderr, "noria: bug at %s:%d: %s (%s)\n", file, line, text, condition);
  std::abort();
}

}  // namespace noria::detail

#define NORIA_CHECK(condition, text)                                       \
  do {                                                                     \
    if (!(condition)) [[unlikely]]                                         \
      ::noria::detail::check_failed(__FILE__, __LINE__, #condition, text); \
  } while (false)

#ifdef NDEBUG
#define NORIA_DCHECK(condition, text) static_cast<void>(sizeof(!(condition)))
#else
#define NORIA_DCHECK(condition, text) NORIA_CHECK(condition, text)
#endif
