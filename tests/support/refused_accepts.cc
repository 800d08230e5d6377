#include "tests/support/refused_accepts.hpp"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>

namespace noria::test {
namespace {

std::atomic<int> refusal{0};  // an errno value; 0: none
std::atomic<int> refused{0};

}  // namespace

RefusedAccepts::RefusedAccepts(int error) {
  refused = 0;
  refusal = error;
}
int RefusedAccepts::count() const { return refused; }
void RefusedAccepts::end() { refusal = 0; }

}  // namespace noria::test

extern "C" [[gnu::visibility("default")]] int accept4(int fd, sockaddr* name, socklen_t* bytes,
                                                      int flags) {
  if (const int error = noria::test::refusal; error != 0) {
    ++noria::test::refused;
    errno = error;
    return -1;
  }
  return static_cast<int>(::syscall(SYS_accept4, fd, name, bytes, flags));
}
