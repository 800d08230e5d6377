// Readiness: which tensors of the step were given, and which segments are thereby complete.
//
// A segment is ready when every tensor that overlaps it was given; the ring reads its counter. The
// cost of give() is one exchange, and one subtraction for each segment that the tensor overlaps.
// Empty tensors overlap none but must be given all the same.
//
// The ring counts segments in launch order, in which the pieces of a split tensor need not follow
// each other. Here they are counted along the arena, where they do: a **stretch** is a segment
// under that number.
//
// Threads: give(), and take() after it, any thread, several at once; the rest one at a time
// and never beside them.
#pragma once

#include <atomic>
#include <cstdint>
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
  enum class Given : uint8_t { no = 0, once = 1, twice = 2 };

  // `segments` are those of the plan's buckets, then others that no tensor overlaps, each of which
  // waits for one take(); they are the last stretches too.
  Readiness(const Plan& plan, std::span<const PlanTensor> tensors,
            std::span<const Segment> segments);

  void restart();  // nothing was given

  // False, and remembered, if it was given before in this step.
  NORIA_HOT bool give(uint32_t id) {
    // relaxed: only the count matters; the gradient's bytes are published by take().
    if (given_[id].exchange(Given::once, std::memory_order_relaxed) == Given::no) return true;
    given_[id].store(Given::twice, std::memory_order_relaxed);
    return false;
  }
  // One tensor of the stretch is in place. True: it was the last, the segment is ready.
  NORIA_HOT bool take(uint32_t stretch) {
    // release: publishes the tensor's bytes; pairs with the ring's acquire, which reads the end of
    // a chain of these.
    return pending_[stretches_[stretch].segment].fetch_sub(1, std::memory_order_release) == 1;
  }

  NORIA_HOT const Home& home(uint32_t id) const { return homes_[id]; }
  // Where the stretch ends in the arena; 0 for those past the buckets.
  NORIA_HOT uint64_t stretch_end(uint32_t stretch) const { return stretches_[stretch].end; }
  uint32_t bucket_of(uint32_t stretch) const { return stretches_[stretch].bucket; }
  uint32_t tensors() const { return tensors_; }

  // After the last give().
  Given given(uint32_t id) const { return given_[id].load(std::memory_order_relaxed); }
  std::vector<uint32_t> those(Given state) const;

  // One counter a segment, for the ring.
  std::atomic<uint32_t>* pending() { return pending_.get(); }

 private:
  struct Stretch {
    uint64_t end = 0;
    uint32_t segment = 0;
    uint32_t bucket = 0;
  };

  void add_bucket(const Bucket& bucket, uint32_t index, std::span<const Segment> segments,
                  uint32_t first);

  const uint32_t tensors_;  // homes_.size() is a division
  std::vector<Home> homes_;
  std::vector<Stretch> stretches_;
  std::vector<uint32_t> tensors_of_segment_;  // what pending_ starts from
  std::unique_ptr<std::atomic<Given>[]> given_;
  std::unique_ptr<std::atomic<uint32_t>[]> pending_;
};

}  // namespace noria::bucketing
