#include "verbs/soft/own_pages.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <charconv>
#include <cstring>
#include <optional>
#include <string_view>

#include "verbs/soft/segment.hpp"

namespace noria::soft {
namespace {

struct Mapped {
  uint64_t start = 0, end = 0;
  bool is_readable = false, is_writable = false;
};

// "7f00a000-7f00c000 rw-p ..."
std::optional<Mapped> parse(std::string_view line) {
  Mapped mapped;
  const char* const end = line.data() + line.size();
  const auto start_at = std::from_chars(line.data(), end, mapped.start, 16);
  if (start_at.ptr == end || *start_at.ptr != '-') return std::nullopt;
  const auto end_at = std::from_chars(start_at.ptr + 1, end, mapped.end, 16);
  if (end - end_at.ptr < 3) return std::nullopt;
  mapped.is_readable = end_at.ptr[1] == 'r';
  mapped.is_writable = end_at.ptr[2] == 'w';
  return mapped;
}

// Follows a range through mappings that come in order of their addresses.
struct Walk {
  uint64_t at, end;
  bool for_writing;
  bool is_good = true;

  // False: there is no need to look further.
  bool take(const Mapped& next) {
    if (next.end <= at) return true;
    is_good = next.start <= at && next.is_readable && (next.is_writable || !for_writing);
    at = next.end;
    return is_good && at < end;
  }
};

}  // namespace

bool has_pages(uint64_t address, uint64_t length, bool for_writing) {
  if (length == 0) return true;
  const uint64_t page = address & ~uint64_t{4095};
  const uint64_t bytes = length + (address - page);
  if (::msync(reinterpret_cast<void*>(page), bytes, MS_ASYNC) != 0) return false;
  const Fd maps(::open("/proc/self/maps", O_RDONLY | O_CLOEXEC));
  if (!maps.is_open()) return true;
  Walk walk{page, page + bytes, for_writing};
  char text[8192];
  size_t held = 0;
  while (true) {
    const ssize_t n = ::read(maps.get(), text + held, sizeof text - held);
    if (n <= 0) return walk.is_good && walk.at >= walk.end;
    held += static_cast<size_t>(n);
    size_t begin = 0;
    while (const void* found = std::memchr(text + begin, '\n', held - begin)) {
      const auto stop = static_cast<size_t>(static_cast<const char*>(found) - text);
      const auto mapped = parse({text + begin, stop - begin});
      if (mapped && !walk.take(*mapped)) return walk.is_good;
      begin = stop + 1;
    }
    std::memmove(text, text + begin, held - begin);
    held -= begin;
    if (held == sizeof text) held = 0;  // a path longer than any of ours
  }
}

}  // namespace noria::soft
