#include "verbs/soft/own_pages.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cstring>
#include <optional>

#include "verbs/soft/segment.hpp"

namespace noria::soft {
namespace {

constexpr uint64_t kPage = 4096;
constexpr uint64_t kExactBytes = 16 * kPage;

// What a descriptor of /proc/self/maps answers since Linux 6.11: the mapping that holds
// an address (linux/fs.h: struct procmap_query, which headers of Debian 12 do not have yet).
struct MappingQuery {
  uint64_t size = sizeof(MappingQuery);
  uint64_t query_flags = 0;
  uint64_t address = 0;
  uint64_t start = 0, end = 0;
  uint64_t flags = 0;
  uint64_t page_size = 0, offset = 0, inode = 0;
  uint32_t device_major = 0, device_minor = 0;
  uint32_t name_bytes = 0, build_id_bytes = 0;
  uint64_t name = 0, build_id = 0;
};
static_assert(sizeof(MappingQuery) == 104);
constexpr unsigned long kMappingQuery = _IOWR('f', 17, MappingQuery);
constexpr uint64_t kReadable = 1, kWritable = 2;

// Kept open until the library is unloaded: to open it takes five times as long as to ask.
int own_mappings() {
  static const Fd maps(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
  return maps.get();
}

// Nothing where the kernel does not answer.
std::optional<bool> mappings_have(uint64_t at, uint64_t end, bool for_writing) {
  const uint64_t needed = kReadable | (for_writing ? kWritable : 0);
  while (at < end) {
    MappingQuery query{.address = at};
    if (::ioctl(own_mappings(), kMappingQuery, &query) != 0) {
      if (errno == ENOENT) return false;  // a hole
      return std::nullopt;
    }
    if ((query.flags & needed) != needed) return false;
    at = query.end;
  }
  return true;
}

// As linux/mman.h has them; the C library of Debian 12 has them too, older ones do not.
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
bool can_populate() {
  static const int some_page = 0;
  static const bool answer =
      has_access(reinterpret_cast<uint64_t>(&some_page) & ~(kPage - 1), kPage, false);
  return answer;
}

}  // namespace

bool has_pages(uint64_t address, uint64_t length, bool for_writing) {
  if (length == 0) return true;
  if (const auto answer = mappings_have(address, address + length, for_writing)) return *answer;
  const uint64_t first = address & ~(kPage - 1);
  const uint64_t last = (address + length - 1) & ~(kPage - 1);
  const uint64_t bytes = last + kPage - first;
  if (::msync(reinterpret_cast<void*>(first), bytes, MS_ASYNC) != 0) return false;  // a hole
  if (!can_populate()) return true;
  if (bytes <= kExactBytes) return has_access(first, bytes, for_writing);
  return has_access(first, kPage, for_writing) && has_access(last, kPage, for_writing);
}

bool copy_own(void* to, const void* from, uint64_t bytes) {
  const iovec ours{to, bytes}, theirs{const_cast<void*>(from), bytes};
  const ssize_t moved = ::process_vm_readv(::getpid(), &ours, 1, &theirs, 1, 0);
  if (moved >= 0 || errno == EFAULT) return moved == static_cast<ssize_t>(bytes);
  if (!has_pages(reinterpret_cast<uint64_t>(from), bytes, false)) return false;
  std::memcpy(to, from, bytes);
  return true;
}

}  // namespace noria::soft
