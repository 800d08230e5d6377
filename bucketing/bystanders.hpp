// Bystanders: threads that wait for a result while another thread drives.
//
// Each sleeps until what it waits for is so; whoever makes it so calls tell() afterwards. No news
// is lost: a bystander counts itself, then looks; whoever tells has made the news, then looks at
// the count. Both touch the count by read-modify-write, so that one of the two sees the other (the
// argument of Sleeper). tell() costs one atomic addition where nobody sleeps.
//
// Threads: any thread.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"
#include "base/mutex.hpp"

namespace noria::bucketing {

class Bystanders {
 public:
  // Until is_over(), or the deadline.
  template <class IsOver>
  void sleep_until(IsOver is_over, Nanoseconds deadline) {
    sleeping_.fetch_add(1, std::memory_order_acq_rel);
    {
      const MutexLock lock(mutex_);
      while (!is_over()) {
        if (deadline == kNever)
          news_.wait(mutex_);
        else if (!news_.wait_until(mutex_, deadline))
          break;
      }
    }
    sleeping_.fetch_sub(1, std::memory_order_acq_rel);
  }

  void tell() {
    if (sleeping_.fetch_add(0, std::memory_order_acq_rel) == 0) return;
    { const MutexLock lock(mutex_); }  // who saw nothing of the news is in wait() by now
    news_.notify_all();
  }

 private:
  std::atomic<uint32_t> sleeping_{0};
  Mutex mutex_;
  CondVar news_;
};

}  // namespace noria::bucketing
