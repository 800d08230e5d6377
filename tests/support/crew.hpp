// Crew: test processes that know each other only by a socket pair.
//
// start() forks one process for each body before any of them touches a verbs library; the parent
// never does. Each child runs its body with a Wire to its neighbour and one to the parent, and
// exits with 1 if a gtest expectation failed in it. Every wait has a bound; children left over when
// the Crew goes are killed, and so are children whose parent dies.
//
// Threads: one at a time; start() before the process has other threads.
#pragma once

#include <gtest/gtest.h>
#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace noria::test {

// One end of a socket pair. All calls give up after 30 seconds and fail the test; a failed Wire
// answers with zeroed values from then on.
class Wire {
 public:
  explicit Wire(int fd = -1) : fd_(fd) {}

  template <class T>
  void send(const T& value) {
    send_bytes(&value, sizeof value);
  }
  template <class T>
  T recv() {
    T value{};
    recv_bytes(&value, sizeof value);
    return value;
  }
  template <class T>
  T exchange(const T& mine) {
    send(mine);
    return recv<T>();
  }
  // Both ends have come here.
  void meet() { exchange(uint8_t{1}); }

  int fd() const { return fd_; }

 private:
  void send_bytes(const void* data, size_t bytes);
  void recv_bytes(void* data, size_t bytes);

  int fd_;
  bool failed_ = false;
};

struct Post {
  int side = 0;
  Wire peer;    // to the other child, where there are exactly two
  Wire parent;  // to the test itself
};
using Body = std::function<void(Post&)>;

// How a child ended.
struct Ending {
  int exit_code = -1;
  int signal = 0;
  bool timed_out = false;
};

class Crew {
 public:
  explicit Crew(const std::vector<Body>& bodies);
  ~Crew();
  Crew(const Crew&) = delete;
  Crew& operator=(const Crew&) = delete;

  pid_t pid(size_t side) const { return children_[side].pid; }
  Wire& wire(size_t side) { return children_[side].wire; }
  void kill(size_t side, int signal);  // SIGSTOP: returns when it stands still
  Ending wait(size_t side, std::chrono::seconds limit = std::chrono::seconds(40));

 private:
  struct Child {
    pid_t pid = -1;
    Wire wire;
  };
  std::vector<Child> children_;
};

// Runs both bodies and expects both to end well.
void run_pair(const Body& first, const Body& second);
inline void run_pair(const Body& both) { run_pair(both, both); }

}  // namespace noria::test
