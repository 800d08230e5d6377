// Fd: a file descriptor that closes itself.
//
// Threads: a value; one at a time.
#pragma once

#include <unistd.h>

#include <utility>

namespace noria {

class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  Fd(Fd&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Fd& operator=(Fd&& other) noexcept {
    if (this != &other) reset(std::exchange(other.fd_, -1));
    return *this;
  }
  ~Fd() { reset(); }

  int get() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }
  int release() { return std::exchange(fd_, -1); }
  void reset(int fd = -1) {
    if (fd_ >= 0) ::close(fd_);  // nothing to do about a failure: the number is free either way
    fd_ = fd;
  }

 private:
  int fd_ = -1;
};

}  // namespace noria
