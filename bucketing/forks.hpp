// Whether an object belongs to this process, or to the one that forked it.
//
// A child of fork() has a copy of every object but none of the threads behind them, and locks in
// whatever state they were. It must touch nothing: an Origin tells so at the cost of a load and a
// comparison. What the child would keep open to its parent's harm, sockets by whose end other ranks
// notice a death, it closes at birth: who has such has a ForkWatch.
//
// Threads: Origin any thread; a ForkWatch is made and destroyed by any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>

#include "base/check.hpp"

namespace noria::bucketing {

// How many forks lie between the process that loaded this library and this one.
extern std::atomic<uint32_t> forks_behind;

class Origin {
 public:
  NORIA_HOT bool is_here() const {
    // relaxed: it changes before a child's only thread goes on.
    return born_ == forks_behind.load(std::memory_order_relaxed);
  }

 private:
  const uint32_t born_ = forks_behind.load(std::memory_order_relaxed);
};

// From now on forks are noticed. Before the first Origin that is to tell of them.
void watch_forks();

// While it stands each child calls a function, on its only thread: close(2) and little else.
// Declare it after what the function uses.
class ForkWatch {
 public:
  explicit ForkWatch(std::function<void()> in_child);
  ~ForkWatch();
  ForkWatch(const ForkWatch&) = delete;
  ForkWatch& operator=(const ForkWatch&) = delete;

 private:
  friend void call_in_child();
  const std::function<void()> in_child_;
};

}  // namespace noria::bucketing
