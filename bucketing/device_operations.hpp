// DeviceOperations: which operations of NCCL this rank has launched, and which are not done.
//
// The last kKept operations each have a pair of events: `ready`, which the operation waits for, and
// `done`, which whoever needs the result waits for, in a stream. Whoever launches takes the next
// pair by begin(), and calls launched() when both are recorded; the watch, which sleeps while
// nothing is under way, looks at them. Of an operation whose pair was taken again it knows no more;
// as they are on one stream, a later one's end is its end too. Each has a bound of its own: how
// long it may go without progress.
//
// Costs: some loads and stores; a system call only to wake the watch, when nothing was under way.
//
// Threads: begin() and launched() one at a time; the rest the watch.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "bucketing/cuda_event.hpp"
#include "bucketing/seat.hpp"

namespace noria::bucketing {

struct DeviceOperation {
  CudaEvent ready;  // recorded by whoever knows when inputs are there
  CudaEvent done;   // recorded by NcclCollective
};

class DeviceOperations {
 public:
  static constexpr uint64_t kKept = 64;

  static Outcome<DeviceOperations> create(const CudaDevice& device) {
    std::vector<DeviceOperation> pairs;
    pairs.reserve(kKept);
    for (uint64_t i = 0; i < kKept; ++i) {
      NORIA_TRY_ASSIGN(CudaEvent ready, CudaEvent::create(device));
      NORIA_TRY_ASSIGN(CudaEvent done, CudaEvent::create(device));
      pairs.push_back({std::move(ready), std::move(done)});
    }
    return DeviceOperations(std::move(pairs));
  }

  // The pair of the next operation, which counts as under way from now on.
  NORIA_HOT DeviceOperation& begin(Nanoseconds bound) {
    const uint64_t index = counts_->begun.load(std::memory_order_relaxed);  // this thread's own
    // relaxed: the count below publishes it.
    counts_->bounds[index % kKept].store(bound, std::memory_order_relaxed);
    // release: what is before, so that a watch that knows of this one knows of the earlier ones.
    counts_->begun.store(index + 1, std::memory_order_release);
    counts_->watch.wake();
    return pairs_[index % kKept];
  }
  // The events of the one that was begun last are recorded.
  NORIA_HOT void launched() {
    counts_->launched.store(counts_->begun.load(std::memory_order_relaxed),
                            std::memory_order_release);  // pairs with the watch's look
  }

  // ---- the watch's
  uint64_t begun() const { return counts_->begun.load(std::memory_order_acquire); }
  uint64_t launched_count() const { return counts_->launched.load(std::memory_order_acquire); }
  // Of one of the last kKept: its events, of which a later operation may make use any time.
  const DeviceOperation& at(uint64_t index) const { return pairs_[index % kKept]; }
  Nanoseconds bound_of(uint64_t index) const {
    return counts_->bounds[index % kKept].load(std::memory_order_relaxed);
  }
  // Of the one that was begun last; whoever launches it asks.
  NORIA_HOT Nanoseconds bound() const {
    return bound_of(counts_->begun.load(std::memory_order_relaxed) - 1);
  }
  Sleeper& watch() { return counts_->watch; }

 private:
  struct Counts {
    std::atomic<uint64_t> begun{0}, launched{0};
    std::array<std::atomic<Nanoseconds>, kKept> bounds{};
    Sleeper watch;
  };
  explicit DeviceOperations(std::vector<DeviceOperation> pairs) : pairs_(std::move(pairs)) {}

  std::vector<DeviceOperation> pairs_;
  std::unique_ptr<Counts> counts_ = std::make_unique<Counts>();
};

}  // namespace noria::bucketing
