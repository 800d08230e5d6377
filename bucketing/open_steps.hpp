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
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/mutex.hpp"

namespace noria::bucketing {

class OpenStep {
 public:
  // What this rank still has to do for it, in words: "has not given 'a' (1 of 4 tensors)"; empty:
  // nothing. Called by any thread, from the step's begin to its end.
  virtual std::string owes() const = 0;

 protected:
  ~OpenStep() = default;
};

class OpenSteps {
 public:
  void begin(const OpenStep* step) {
    const MutexLock lock(mutex_);
    open_.push_back(step);
    count_.store(open_.size(), std::memory_order_relaxed);
  }
  void end(const OpenStep* step) {
    const MutexLock lock(mutex_);
    open_.erase(std::remove(open_.begin(), open_.end(), step), open_.end());
    count_.store(open_.size(), std::memory_order_relaxed);
  }
  bool is_first(const OpenStep* step) const {
    const MutexLock lock(mutex_);
    return !open_.empty() && open_.front() == step;
  }
  // relaxed: who opens a step and calls a collective at once is told so, or not.
  bool any() const { return count_.load(std::memory_order_relaxed) != 0; }
  // Of the first one, which the ring works on; none: no step is open. It cannot end meanwhile.
  std::optional<std::string> owes() const {
    const MutexLock lock(mutex_);
    if (open_.empty()) return std::nullopt;
    return open_.front()->owes();
  }

  // Of the communicator's next reducer that is sealed: the same number on all ranks, so that they
  // can tell reducers of one shape from each other.
  uint64_t take_number() {
    const MutexLock lock(mutex_);
    return next_number_++;
  }

 private:
  mutable Mutex mutex_;
  std::vector<const OpenStep*> open_ NORIA_GUARDED_BY(mutex_);
  std::atomic<size_t> count_{0};  // of open_; written under the mutex
  uint64_t next_number_ NORIA_GUARDED_BY(mutex_) = 0;
};

}  // namespace noria::bucketing
