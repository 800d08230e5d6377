// RefusedAccepts: while it lasts, accept4() gives no thread of this process a socket, and the
// caller stays queued, as where the kernel lacks memory.
//
// It takes the C library's place in an executable that has refused_accepts.cc.
//
// Threads: one at a time in a process; accept4() from any.
#pragma once

namespace noria::test {

class RefusedAccepts {
 public:
  explicit RefusedAccepts(int error);
  ~RefusedAccepts() { end(); }
  RefusedAccepts(const RefusedAccepts&) = delete;
  RefusedAccepts& operator=(const RefusedAccepts&) = delete;

  int count() const;
  void end();
};

}  // namespace noria::test
