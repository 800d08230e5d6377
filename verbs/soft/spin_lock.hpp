// SpinLock: the lock of queues inside one process. Never placed in shared memory, so that no killed
// peer can hold it.
//
// About 8 ns for lock and unlock without contention, no system call. A waiter spins shortly, then
// yields its core to the holder, so that more threads than cores still make progress.
//
// Threads: any thread.
#pragma once

#include <sched.h>

#include <atomic>

#include "base/mutex.hpp"

namespace noria::soft {

class NORIA_CAPABILITY("spin lock") SpinLock {
 public:
  void lock() NORIA_ACQUIRE() {
    while (taken_.exchange(true, std::memory_order_acquire)) wait();  // pairs with unlock()
  }
  bool try_lock() NORIA_TRY_ACQUIRE(true) {
    return !taken_.exchange(true, std::memory_order_acquire);  // pairs with unlock()
  }
  void unlock() NORIA_RELEASE() {
    taken_.store(false, std::memory_order_release);  // pairs with the exchange in lock()
  }

 private:
  [[gnu::noinline]] void wait() const {
    constexpr int kSpins = 64;
    // relaxed: only a hint that the exchange is worth trying again.
    for (int i = 0; taken_.load(std::memory_order_relaxed); ++i)
      if (i >= kSpins) sched_yield();
  }
  std::atomic<bool> taken_{false};
};

class NORIA_SCOPED_CAPABILITY SpinGuard {
 public:
  explicit SpinGuard(SpinLock& lock) NORIA_ACQUIRE(lock) : lock_(lock) { lock_.lock(); }
  ~SpinGuard() NORIA_RELEASE() { lock_.unlock(); }
  SpinGuard(const SpinGuard&) = delete;
  SpinGuard& operator=(const SpinGuard&) = delete;

 private:
  SpinLock& lock_;
};

}  // namespace noria::soft
