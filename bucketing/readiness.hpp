// Readiness: how often each tensor of the step has fired, and which segments are thereby complete.
//
// A tensor fires once for each call that brings it, as often as is expected of it (once, unless
// expect() says more); with the last it is given. Or it is closed before: no more will come. A
// segment is ready when every tensor that overlaps it was given or closed; the ring reads its
// counter. The cost of fire() is one subtraction, and one more for each segment that the tensor
// overlaps. Empty tensors overlap none but must be given all the same.
//
// The ring counts segments in launch order, in which the pieces of a split tensor need not follow
// each other. Here they are counted along the arena, where they do: a **stretch** is a segment
// under that number.
//
// Threads: fire(), close() and fires(), and take() after them, any thread, several at once; the
// rest one at a time and never beside them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "bucketing/plan.hpp"
#include "bucketing/segments.hpp"

namespace noria::bucketing {

class Readiness {
 public:
  // Where a tensor lies. Copied in piece by piece, since segments become ready one by one.
  struct Home {
    uint64_t offset = 0;  // in the arena
    uint64_t bytes = 0;
    uint32_t first_stretch = 0;
    uint32_t stretches = 0;

    uint32_t end_stretch() const { return first_stretch + stretches; }
    ArenaRange range() const { return {.begin = offset, .end = offset + bytes}; }
  };
  enum class Fire : uint8_t { early, last, late };
  // No number of fires is the last: they are counted.
  static constexpr int32_t kUncertain = std::numeric_limits<int32_t>::max();

  // `segments` are those of the plan's buckets, then others that no tensor overlaps, each of which
  // waits for one take(); they are the last stretches too.
  Readiness(const Plan& plan, std::span<const PlanTensor> tensors,
            std::span<const Segment> segments);

  // From the next restart() on. 0: every fire is late.
  void expect(uint32_t id, int32_t fires) { expected_[id] = fires; }
  int32_t expected(uint32_t id) const { return expected_[id]; }
  void restart();  // nothing has fired

  // late: remembered, see is_late().
  NORIA_HOT Fire fire(uint32_t id) {
    // release: what the caller wrote before is for whoever closes the tensor. The gradient's bytes
    // are published by take().
    const int32_t left = left_[id].fetch_sub(1, std::memory_order_release);
    if (left == 1) return Fire::last;
    if (left > 1) return Fire::early;
    left_[id].store(kLate, std::memory_order_relaxed);  // far from ever being positive again
    return Fire::late;
  }
  // No more of it will come in this step. False, and remembered as late, if it was given or closed.
  // One of which nothing is expected may be closed too.
  bool close(uint32_t id) {
    const int32_t left = left_[id].exchange(0, std::memory_order_acquire);  // pairs with fire()
    if (left > 0 || (left == 0 && expected_[id] == 0)) {
      // relaxed: a number for texts and counts.
      if (closed_[id].exchange(~left, std::memory_order_relaxed) == 0) return true;
    }
    left_[id].store(kLate, std::memory_order_relaxed);
    return false;
  }
  // One tensor of the stretch is in place. True: it was the last, the segment is ready.
  NORIA_HOT bool take(uint32_t stretch) {
    // release: publishes the tensor's bytes; pairs with the ring's acquire, which reads the end of
    // a chain of these.
    return pending_[stretches_[stretch].segment].fetch_sub(1, std::memory_order_release) == 1;
  }

  // After the last of them: what whoever took before wrote is seen.
  void see(uint32_t stretch) const {
    // acquire: pairs with each release in take(), as they are one chain.
    static_cast<void>(pending_[stretches_[stretch].segment].load(std::memory_order_acquire));
  }

  NORIA_HOT const Home& home(uint32_t id) const { return homes_[id]; }
  // Where the stretch ends in the arena; 0 for those past the buckets.
  NORIA_HOT uint64_t stretch_end(uint32_t stretch) const { return stretches_[stretch].end; }
  uint32_t bucket_of(uint32_t stretch) const { return stretches_[stretch].bucket; }
  uint32_t tensors() const { return tensors_; }
  uint32_t stretches() const { return static_cast<uint32_t>(stretches_.size()); }

  // How often it has fired, late ones aside.
  int32_t fires(uint32_t id) const {
    const int32_t closed = closed_[id].load(std::memory_order_relaxed);
    return expected_[id] - owed(id) - (closed == 0 ? 0 : ~closed);
  }
  // Fires that still have to come; 0 once it is given or closed.
  int32_t owed(uint32_t id) const { return std::max(left_[id].load(std::memory_order_relaxed), 0); }
  bool is_closed(uint32_t id) const { return closed_[id].load(std::memory_order_relaxed) != 0; }
  bool is_late(uint32_t id) const { return left_[id].load(std::memory_order_relaxed) < 0; }

  // One counter a segment, for the ring.
  std::atomic<uint32_t>* pending() { return pending_.get(); }

 private:
  struct Stretch {
    uint64_t end = 0;
    uint32_t segment = 0;
    uint32_t bucket = 0;
  };
  static constexpr int32_t kLate = std::numeric_limits<int32_t>::min() / 2;

  void add_bucket(const Bucket& bucket, uint32_t index, std::span<const Segment> segments,
                  uint32_t first);

  const uint32_t tensors_;  // homes_.size() is a division
  std::vector<Home> homes_;
  std::vector<Stretch> stretches_;
  std::vector<uint32_t> tensors_of_segment_;  // what pending_ starts from
  std::vector<int32_t> expected_;             // what left_ starts from
  std::unique_ptr<std::atomic<int32_t>[]> left_;
  std::unique_ptr<std::atomic<int32_t>[]> closed_;  // ~fires that were owed then, or 0
  std::unique_ptr<std::atomic<uint32_t>[]> pending_;
};

}  // namespace noria::bucketing
