// The ring's order of work: pure arithmetic, the same on every rank.
//
// Data flows from left to right. Segment k has one chunk a rank and two phases of n - 1 steps:
//
//   reduce, step s   rank r fetches the left rank's partial of chunk r-1-s and adds its own. At
//                    step 0 the left's partial is its plain input. After step n-2 rank r holds
//                    chunk r+1 finished.
//   gather, step s   rank r sends chunk r+1-s, which is finished, and receives chunk r-s.
//
// (all modulo n). Segments are pipelined: tick t holds the items (k, s) with k + s = t, older
// segments first. Every rank works its items off in this order, so messages need no tags, and the
// smallest item that is not done anywhere can always be done: nobody waits in a circle.
// The price: an older segment in mid-ring waits while the next one is not yet ready to be sent.
//
// A reduce-scatter is the reduce phase alone, an all-gather the gather phase. As rank r ends the
// one and begins the other with chunk r+1, chunk c is a slice of the block of rank c-1.
//
// Threads: any thread.
#pragma once

#include <cstdint>

namespace noria::bucketing {

// Walks over the items of one phase in order.
class PipelineWalk {
 public:
  PipelineWalk() = default;
  PipelineWalk(uint32_t segments, uint32_t steps)
      : segments_(segments), steps_(steps), total_(uint64_t{segments} * steps) {}

  // Instead, groups of segments behind each other, those of a group step by step: from an item to
  // the same segment's next step it is `group` items, however many steps there are.
  static PipelineWalk in_groups(uint32_t segments, uint32_t steps, uint32_t group) {
    PipelineWalk walk(segments, steps);
    walk.group_ = group;
    return walk;
  }

  bool is_done() const { return index_ == total_; }
  uint64_t index() const { return index_; }  // items before this one
  uint64_t total() const { return total_; }
  uint32_t segment() const { return segment_; }
  uint32_t step() const { return step_; }

  void next() {
    ++index_;
    ++segment_;
    if (group_ != 0) return step_in_group();
    if (step_ != 0 && segment_ != segments_) {
      --step_;
      return;
    }
    ++tick_;
    segment_ = tick_ < steps_ ? 0 : tick_ - steps_ + 1;
    step_ = tick_ - segment_;
  }

 private:
  void step_in_group() {
    const uint32_t end = segments_ - first_ < group_ ? segments_ : first_ + group_;
    if (segment_ != end) return;
    if (++step_ == steps_) {
      step_ = 0;
      first_ = end;
    }
    segment_ = first_;
  }

  uint32_t segments_ = 0, steps_ = 0, tick_ = 0, segment_ = 0, step_ = 0;
  uint32_t group_ = 0, first_ = 0;  // 0: no groups; the group's first segment
  uint64_t index_ = 0, total_ = 0;
};

// A rank's place among n.
struct RingPlace {
  uint32_t rank = 0;
  uint32_t size = 1;

  uint32_t left() const { return rank == 0 ? size - 1 : rank - 1; }
  uint32_t right() const { return rank + 1 == size ? 0 : rank + 1; }

  // `step` is below size - 1.
  uint32_t fetched_chunk(uint32_t step) const { return wrap(rank + size - 1 - step); }
  // What the right neighbour fetches from us at its step.
  uint32_t offered_chunk(uint32_t step) const { return wrap(rank + size - step); }
  uint32_t sent_chunk(uint32_t step) const { return wrap(rank + size + 1 - step); }
  uint32_t received_chunk(uint32_t step) const { return wrap(rank + size - step); }
  // Whose block a chunk is a slice of.
  uint32_t block_of(uint32_t chunk) const { return wrap(chunk + size - 1); }

 private:
  // The largest argument, rank + size + 1, is at most 2 * size.
  uint32_t wrap(uint32_t chunk) const {
    if (chunk >= size) chunk -= size;
    return chunk >= size ? chunk - size : chunk;
  }
};

}  // namespace noria::bucketing
