// RingGather: the gather phase. Each finished chunk goes straight into the right neighbour's result
// and on from there.
//
// Receives are posted ahead, over memory that the reduce phase works in. That is safe: the left
// neighbour writes chunk c only when c is finished, and c is finished only after it passed through
// every rank. By then this rank has added its input to c, and the right neighbour has fetched this
// rank's input or partial of c. The same holds in place, where that input is what is overwritten.
//
// Where writing into the caller's memory would mean to attach to it (RingFetch::by_memory), chunks
// land in slots that the neighbour maps, and are copied out: two plain copies beat one by the
// kernel. The sender does not know the difference.
//
// Threads: the engine's driver, one at a time.
#pragma once

#include <cstdint>
#include <utility>

#include "bucketing/ring_core.hpp"
#include "bucketing/ring_run.hpp"

namespace noria::bucketing {

class RingGather {
 public:
  static constexpr uint32_t kSlots = 4;
  static constexpr uint64_t kSlotBytes = kSlots * kChunkBytes;

  // `slots` may be invalid: then nothing ever goes through them.
  explicit RingGather(transport::Region slots) : slots_(std::move(slots)) {}

  void begin(const RingCore& core, const RingRun& run);
  // True when something moved. Copies at most one chunk out of its slot, and one of an all-gather's
  // own block into the result.
  NORIA_HOT bool advance(RingCore& core, RingRun& run);
  bool has_sent_all() const { return sent_.is_done(); }

  const PipelineWalk& waits_at() const { return received_; }
  bool has_received_all() const { return received_.is_done(); }

 private:
  NORIA_HOT bool post_receives(RingCore& core, RingRun& run);
  NORIA_HOT bool take_received(RingCore& core, RingRun& run);
  NORIA_HOT bool post_sends(RingCore& core, RingRun& run);

  transport::Region slots_;
  bool uses_slots_ = false;
  uint32_t receive_slot_ = 0, copy_slot_ = 0, slots_taken_ = 0;

  PipelineWalk receiving_, received_;
  RequestFifo receives_;
  PipelineWalk sending_, sent_;
  uint64_t placed_ = 0;  // items before it need no copy of this rank's own input any more
  RequestFifo sends_;
};

}  // namespace noria::bucketing
