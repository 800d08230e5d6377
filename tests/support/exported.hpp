// Memory that stands for another device's: a file in memory, which a network device registers by
// its descriptor, and what its own device sees of it.
//
// Threads: one at a time.
#pragma once

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>

#include "tests/support/pattern.hpp"

namespace noria::test {

class Exported {
 public:
  explicit Exported(size_t bytes) : bytes_(bytes), fd_(memfd_create("exported", MFD_CLOEXEC)) {
    EXPECT_EQ(ftruncate(fd_, static_cast<off_t>(bytes)), 0);
    void* const view = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
    EXPECT_NE(view, MAP_FAILED);
    view_ = static_cast<std::byte*>(view);
  }
  ~Exported() {
    munmap(view_, bytes_);
    close(fd_);
  }
  Exported(const Exported&) = delete;
  Exported& operator=(const Exported&) = delete;

  int fd() const { return fd_; }
  std::byte* data() const { return view_; }
  size_t bytes() const { return bytes_; }
  // Whether its device sees the pattern of `seed` at `offset`.
  bool sees(size_t offset, size_t bytes, uint64_t seed) const {
    return first_wrong(view_ + offset, bytes, seed) == bytes;
  }

 private:
  size_t bytes_;
  int fd_;
  std::byte* view_ = nullptr;
};

}  // namespace noria::test
