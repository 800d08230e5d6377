#include "verbs/soft/own_pages.hpp"

#include <sys/mman.h>

namespace noria::soft {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kExactBytes = 16 * kPage;

// As linux/mman.h has them; the C library's headers of Debian 12 lack neither, older ones do.
#ifndef MADV_POPULATE_READ
constexpr int MADV_POPULATE_READ = 22;
constexpr int MADV_POPULATE_WRITE = 23;
#endif

// Makes the pages present with that access, and so asks whether they have it.
bool has_access(uint64_t page, uint64_t bytes, bool for_writing) {
  const int wish = for_writing ? MADV_POPULATE_WRITE : MADV_POPULATE_READ;
  return ::madvise(reinterpret_cast<void*>(page), bytes, wish) == 0;
}

// A kernel before 5.14 has no such call, and refuses all of them.
bool can_ask() {
  static const int some_page = 0;
  static const bool answer =
      has_access(reinterpret_cast<uint64_t>(&some_page) & ~(kPage - 1), kPage, false);
  return answer;
}

}  // namespace

bool has_pages(uint64_t address, uint64_t length, bool for_writing) {
  if (length == 0) return true;
  const uint64_t first = address & ~(kPage - 1);
  const uint64_t last = (address + length - 1) & ~(kPage - 1);
  const uint64_t bytes = last + kPage - first;
  if (::msync(reinterpret_cast<void*>(first), bytes, MS_ASYNC) != 0) return false;  // a hole
  if (!can_ask()) return true;
  if (bytes <= kExactBytes) return has_access(first, bytes, for_writing);
  return has_access(first, kPage, for_writing) && has_access(last, kPage, for_writing);
}

}  // namespace noria::soft
