// What lies in this process's memory, read as another process would: while noria writes there.
//
// Threads: any thread.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <vector>

namespace noria::test {

inline std::vector<char> look_at(const void* memory, uint64_t bytes) {
  std::vector<char> seen(bytes);
  const int fd = ::open("/proc/self/mem", O_RDONLY | O_CLOEXEC);
  EXPECT_EQ(::pread(fd, seen.data(), bytes, reinterpret_cast<off_t>(memory)),
            static_cast<ssize_t>(bytes));
  ::close(fd);
  return seen;
}

}  // namespace noria::test
