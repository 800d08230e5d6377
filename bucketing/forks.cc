#include "bucketing/forks.hpp"

#include <pthread.h>

#include <algorithm>
#include <cstddef>
#include <new>
#include <utility>
#include <vector>

#include "base/mutex.hpp"

namespace noria::bucketing {

constinit std::atomic<uint32_t> forks_behind{0};

namespace {

struct Watches {
  Mutex mutex;
  std::vector<ForkWatch*> all NORIA_GUARDED_BY(mutex);
  bool is_registered NORIA_GUARDED_BY(mutex) = false;
};

Watches& watches() {
  // Never destroyed: a child may be forked while this process ends.
  alignas(Watches) static std::byte memory[sizeof(Watches)];
  static Watches* const the_watches = new (memory) Watches;
  return *the_watches;
}

// Held over the fork, so that the child finds a whole list.
void before_fork() NORIA_NO_THREAD_SAFETY_ANALYSIS { watches().mutex.lock(); }
void in_parent() NORIA_NO_THREAD_SAFETY_ANALYSIS { watches().mutex.unlock(); }

}  // namespace

void call_in_child() NORIA_NO_THREAD_SAFETY_ANALYSIS {
  // relaxed: there is one thread.
  forks_behind.fetch_add(1, std::memory_order_relaxed);
  for (ForkWatch* watch : watches().all) watch->in_child_();
  watches().all.clear();
  watches().mutex.unlock();
}

void watch_forks() {
  Watches& mine = watches();
  const MutexLock lock(mine.mutex);
  // Fails without memory for three pointers only: then forks go unnoticed.
  if (!mine.is_registered)
    mine.is_registered = ::pthread_atfork(&before_fork, &in_parent, &call_in_child) == 0;
}

ForkWatch::ForkWatch(std::function<void()> in_child) : in_child_(std::move(in_child)) {
  watch_forks();
  Watches& mine = watches();
  const MutexLock lock(mine.mutex);
  mine.all.push_back(this);
}

ForkWatch::~ForkWatch() {
  Watches& mine = watches();
  const MutexLock lock(mine.mutex);
  mine.all.erase(std::remove(mine.all.begin(), mine.all.end(), this), mine.all.end());
}

}  // namespace noria::bucketing
