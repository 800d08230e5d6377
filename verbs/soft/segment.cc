#include "verbs/soft/segment.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <utility>

namespace noria::soft {

void Unmapper::operator()(const void* base) const { ::munmap(const_cast<void*>(base), bytes); }

void* map_shared(int fd, size_t bytes, bool writable) {
  struct stat file;
  const int seals = ::fcntl(fd, F_GET_SEALS);
  if (::fstat(fd, &file) != 0 || file.st_size < 0 || static_cast<uint64_t>(file.st_size) < bytes ||
      seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    errno = EINVAL;
    return nullptr;
  }
  const int protection = writable ? PROT_READ | PROT_WRITE : PROT_READ;
  void* base = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, 0);
  return base == MAP_FAILED ? nullptr : base;
}

Fd make_memory_file(const char* name, size_t bytes) {
  Fd fd(::memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (fd.is_open() && ::ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) fd.reset();
  // Of a fixed size: who maps it cannot be made to fault.
  if (fd.is_open() &&
      ::fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) != 0)
    fd.reset();
  return fd;
}

Result<Segment> Segment::create() {
  Fd fd = make_memory_file("noria-soft", sizeof(SharedSegment));
  if (!fd.is_open()) return Status::from_errno(Code::no_memory, errno);
  void* memory = map_shared(fd.get(), sizeof(SharedSegment), true);
  if (memory == nullptr) return Status::from_errno(Code::no_memory, errno);
  // A forked child must not write into what peers believe to be its parent's.
  ::madvise(memory, sizeof(SharedSegment), MADV_DONTFORK);
  return Segment(std::move(fd), static_cast<SharedSegment*>(memory));
}

namespace {
constexpr uint64_t kPage = 4096;
uint64_t rounded(uint64_t bytes) { return std::bit_ceil(bytes < kPage ? kPage : bytes); }
}  // namespace

uint64_t Segment::carve(uint64_t bytes) {
  const uint64_t size = rounded(bytes);
  auto& free = free_[static_cast<size_t>(std::countr_zero(size))];
  if (!free.empty()) {
    const uint64_t offset = free.back();
    free.pop_back();
    return offset;
  }
  if (size > kRingArenaBytes - carved_) return kNoRoom;
  return std::exchange(carved_, carved_ + size);
}

void Segment::release(uint64_t offset, uint64_t bytes) {
  const uint64_t size = rounded(bytes);
  // The pages go back to the kernel, and read as zero when carved again: notices of an old ring
  // would pass for news. A sandbox may refuse the call.
  const auto start = offsetof(SharedSegment, rings) + offset;
  if (::fallocate(fd_.get(), FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, static_cast<off_t>(start),
                  static_cast<off_t>(size)) != 0)
    std::memset(reinterpret_cast<std::byte*>(memory_.get()) + start, 0, size);
  free_[static_cast<size_t>(std::countr_zero(size))].push_back(offset);
}

}  // namespace noria::soft
