// A mutex that Clang's thread-safety analysis can check (libstdc++'s std::mutex carries no
// annotations). Build with clang -Wthread-safety: every guarded member must be annotated.
//
// Never taken on the data path; set-up and teardown may lock.
//
// Threads: any thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "base/clock.hpp"

#if defined(__clang__)
#define NORIA_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define NORIA_THREAD_ATTRIBUTE(x)
#endif
#define NORIA_CAPABILITY(x) NORIA_THREAD_ATTRIBUTE(capability(x))
#define NORIA_SCOPED_CAPABILITY NORIA_THREAD_ATTRIBUTE(scoped_lockable)
#define NORIA_GUARDED_BY(x) NORIA_THREAD_ATTRIBUTE(guarded_by(x))
#define NORIA_REQUIRES(...) NORIA_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define NORIA_EXCLUDES(...) NORIA_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define NORIA_ACQUIRE(...) NORIA_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define NORIA_RELEASE(...) NORIA_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define NORIA_TRY_ACQUIRE(...) NORIA_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define NORIA_NO_THREAD_SAFETY_ANALYSIS NORIA_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace noria {

class NORIA_CAPABILITY("mutex") Mutex {
 public:
  void lock() NORIA_ACQUIRE() { mutex_.lock(); }
  void unlock() NORIA_RELEASE() { mutex_.unlock(); }
  bool try_lock() NORIA_TRY_ACQUIRE(true) { return mutex_.try_lock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

class NORIA_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) NORIA_ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~MutexLock() NORIA_RELEASE() { mutex_.unlock(); }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

 private:
  Mutex& mutex_;
};

// A condition variable over Mutex. wait_until() returns false when `deadline` (monotonic, ns)
// passed; wake-ups may be spurious, so wait in a loop over the condition.
class CondVar {
 public:
  void notify_all() { cond_.notify_all(); }
  void wait(Mutex& mutex) NORIA_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    cond_.wait(lock);
    lock.release();
  }
  bool wait_until(Mutex& mutex, Nanoseconds deadline) NORIA_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    // steady_clock is CLOCK_MONOTONIC under libstdc++ on Linux, the clock of now_ns().
    const auto point = std::chrono::steady_clock::time_point(
        std::chrono::duration_cast<std::chrono::steady_clock::duration>(
            std::chrono::nanoseconds(deadline)));
    const bool in_time = cond_.wait_until(lock, point) == std::cv_status::no_timeout;
    lock.release();
    return in_time;
  }

 private:
  std::condition_variable cond_;
};

}  // namespace noria
