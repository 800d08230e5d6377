// RingGather: the gather phase. Each finished chunk goes straight into the right neighbour's result
// and on from there.
//
// Receives are posted ahead, over memory that the reduce phase works in. That is safe: the left
// neighbour writes chunk c only when c is finished, and c is finished only after it passed through
// every rank. By then this rank has added its input to c, and the right neighbour has fetched this
// rank's input or partial of c. The same holds in place, where that input is what is overwritten.
//
// Threads: the engine's driver, one at a time.
#pragma once

#include <cstdint>

#include "bucketing/ring_core.hpp"
#include "bucketing/ring_run.hpp"

namespace noria::bucketing {

class RingGather {
 public:
  void begin(const RingCore& core, const RingRun& run);
  // True when something moved.
  NORIA_HOT bool advance(RingCore& core, RingRun& run);
  bool is_done() const { return received_.is_done() && sent_.is_done(); }

  const PipelineWalk& waits_at() const { return received_; }
  bool has_received_all() const { return received_.is_done(); }

 private:
  NORIA_HOT bool post_receives(RingCore& core, RingRun& run);
  NORIA_HOT bool post_sends(RingCore& core, RingRun& run);

  PipelineWalk receiving_, received_;
  RequestFifo receives_;
  PipelineWalk sending_, sent_;
  RequestFifo sends_;
};

}  // namespace noria::bucketing
