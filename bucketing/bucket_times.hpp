// BucketTimes: when the gradients of each bucket came in a step: the first one, the first piece
// that was complete, the last one.
//
// on_gradient() costs a load and a comparison but for a bucket's first gradient; on_piece(), once a
// segment, has a clock's reading already. restart() is before, and times() after, all callers.
//
// Threads: on_gradient() and on_piece() any thread, several at once; the rest one at a time and
// never beside them.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/check.hpp"
#include "base/clock.hpp"

namespace noria::bucketing {

// When a bucket travelled; 0: it did not, or nobody knows yet.
struct WireTimes {
  Nanoseconds start_ns = 0;
  Nanoseconds end_ns = 0;
  Nanoseconds wire_ns = 0;
};

class BucketTimes {
 public:
  // 0: did not come, or has no bytes.
  struct Times {
    Nanoseconds first = 0;   // its first gradient was given
    Nanoseconds queued = 0;  // its first piece was complete: from here on it waits for the wire
    Nanoseconds last = 0;    // its last gradient was given
  };

  BucketTimes() = default;
  explicit BucketTimes(size_t buckets) : size_(buckets), cells_(new Cells[buckets]) {}

  void restart() {
    // relaxed, here and below: whatever lets callers in publishes it, and whatever waits for them
    // publishes what they wrote.
    for (size_t b = 0; b < size_; ++b) {
      cells_[b].first.store(0, std::memory_order_relaxed);
      cells_[b].queued.store(0, std::memory_order_relaxed);
      cells_[b].last.store(0, std::memory_order_relaxed);
    }
  }

  // `given` 0: now.
  NORIA_HOT void on_gradient(uint32_t bucket, Nanoseconds given) {
    if (cells_[bucket].first.load(std::memory_order_relaxed) == 0) [[unlikely]]
      on_first_gradient(bucket, given);
  }
  // The gradient that completed a piece was given at `given`.
  void on_piece(uint32_t bucket, Nanoseconds given, Nanoseconds now) {
    on_queued(bucket, now);
    on_last_gradient(bucket, given);
  }
  // The two halves of it, where a gradient is given long before it is in place.
  void on_queued(uint32_t bucket, Nanoseconds now) { set_once(cells_[bucket].queued, now); }
  void on_last_gradient(uint32_t bucket, Nanoseconds given) {
    std::atomic<Nanoseconds>& last = cells_[bucket].last;
    // A loop, as another thread may have come later and be first.
    Nanoseconds seen = last.load(std::memory_order_relaxed);
    while (seen < given && !last.compare_exchange_weak(seen, given, std::memory_order_relaxed)) {
    }
  }

  Times times(size_t bucket) const {
    const Cells& cells = cells_[bucket];
    return {.first = cells.first.load(std::memory_order_relaxed),
            .queued = cells.queued.load(std::memory_order_relaxed),
            .last = cells.last.load(std::memory_order_relaxed)};
  }

 private:
  // Not inline: what a clock needs would be saved and restored around every gradient.
  NORIA_COLD void on_first_gradient(uint32_t bucket, Nanoseconds given) {
    set_once(cells_[bucket].first, given != 0 ? given : now_ns());
  }

  // Apart, as buckets are filled by different threads.
  struct alignas(64) Cells {
    std::atomic<Nanoseconds> first{0}, queued{0}, last{0};
  };
  static void set_once(std::atomic<Nanoseconds>& cell, Nanoseconds now) {
    Nanoseconds none = 0;
    cell.compare_exchange_strong(none, now, std::memory_order_relaxed);
  }

  size_t size_ = 0;
  std::unique_ptr<Cells[]> cells_;
};

}  // namespace noria::bucketing
