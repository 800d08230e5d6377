// OpenSteps: the reducers of a communicator that have a synchronised step open, in the order in
// which these began.
//
// The ring works on one step after the other. So steps end in the order in which they began, which
// is the same on all ranks; and what else goes over the ring waits until none is open, as nobody
// could tell where between two gradients it belongs.
//
// Threads: any thread.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "base/mutex.hpp"

namespace noria::bucketing {

class OpenSteps {
 public:
  void begin(const void* reducer) {
    const MutexLock lock(mutex_);
    open_.push_back(reducer);
  }
  void end(const void* reducer) {
    const MutexLock lock(mutex_);
    open_.erase(std::remove(open_.begin(), open_.end(), reducer), open_.end());
  }
  bool is_first(const void* reducer) const {
    const MutexLock lock(mutex_);
    return !open_.empty() && open_.front() == reducer;
  }
  bool any() const {
    const MutexLock lock(mutex_);
    return !open_.empty();
  }

  // Of the communicator's next reducer that is sealed: the same number on all ranks, so that they
  // can tell reducers of one shape from each other.
  uint64_t take_number() {
    const MutexLock lock(mutex_);
    return next_number_++;
  }

 private:
  mutable Mutex mutex_;
  std::vector<const void*> open_ NORIA_GUARDED_BY(mutex_);
  uint64_t next_number_ NORIA_GUARDED_BY(mutex_) = 0;
};

}  // namespace noria::bucketing
