// PortEvents: what a device reported of its own accord, kept for all who use a port of it.
//
// take() reads what was reported since it was called last, and says each in a line, at most
// kLinesAtOnce in ten seconds. It enters the kernel, so nobody calls it for a message: a failure,
// many looks that found nothing, and a new connection are what it is called for.
//
// Queues are known by address: whoever made or destroyed one says forget(), for another may have
// stood there.
//
// Threads: any thread; who finds another taking goes on.
#pragma once

#include <atomic>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "verbs/async_event.hpp"
#include "verbs/provider.hpp"

namespace noria::transport {

class PortEvents {
 public:
  static constexpr unsigned kLinesAtOnce = 8;

  void take(const verbs::Api& api, ibv_context* context, const verbs::PortInfo& port)
      NORIA_EXCLUDES(mutex_);

  // relaxed, here and below: flags alone; what else is known is under the mutex.
  bool is_device_lost() const { return is_device_lost_.load(std::memory_order_relaxed); }
  bool is_any_broken() const { return is_any_broken_.load(std::memory_order_relaxed); }
  // Whether the device gave up this queue pair or completion queue.
  bool is_broken(const void* queue) const NORIA_EXCLUDES(mutex_);
  void forget(const void* queue) NORIA_EXCLUDES(mutex_);
  // Whether the port may be reached otherwise than when this was asked last.
  bool take_change() { return has_changed_.exchange(false, std::memory_order_relaxed); }
  void put_back_change() { has_changed_.store(true, std::memory_order_relaxed); }

 private:
  void note(const verbs::AsyncEvent& event, const verbs::PortInfo& port) NORIA_REQUIRES(mutex_);
  void say(const verbs::AsyncEvent& event, const verbs::PortInfo& port) NORIA_REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::vector<const void*> broken_ NORIA_GUARDED_BY(mutex_);
  Nanoseconds lines_since_ NORIA_GUARDED_BY(mutex_) = 0;
  unsigned lines_ NORIA_GUARDED_BY(mutex_) = 0, unsaid_ NORIA_GUARDED_BY(mutex_) = 0;
  std::atomic<bool> is_device_lost_{false}, is_any_broken_{false}, has_changed_{false};
};

}  // namespace noria::transport
