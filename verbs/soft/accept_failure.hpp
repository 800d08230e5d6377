// Why accept() gave no socket, and what follows.
//
// Threads: values.
#pragma once

#include <cerrno>

namespace noria::soft {

// Whether it is for want of something that comes back, a descriptor or memory. The caller is still
// queued then, so that its listener stays readable: who watches it rests for a while, else it is
// woken without end. After any other error there is nobody there.
constexpr bool leaves_caller_waiting(int error) {
  return error == EMFILE || error == ENFILE || error == ENOBUFS || error == ENOMEM;
}

}  // namespace noria::soft
