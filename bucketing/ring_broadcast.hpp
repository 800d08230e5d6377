// RingBroadcast: root's bytes go round the ring on the gather stream, chunk behind chunk, straight
// into each rank's result and on from there. The rank to the left of root sends nothing.
//
// Threads: the engine's driver, one at a time.
#pragma once

#include <cstdint>

#include "bucketing/ring_core.hpp"
#include "bucketing/ring_run.hpp"

namespace noria::bucketing {

class RingBroadcast {
 public:
  void begin(const RingCore& core, const RingRun& run);
  // True when something moved. On root at most one chunk is copied to its own result.
  NORIA_HOT bool advance(RingCore& core, RingRun& run);
  bool has_received_all() const { return received_.is_done(); }
  bool has_sent_all() const { return sent_.is_done(); }

  uint32_t waits_at_segment() const { return is_root_ ? sent_.segment : received_.segment; }
  bool is_root() const { return is_root_; }

 private:
  // Chunk by chunk, segment by segment.
  struct Walk {
    uint32_t segments = 0, chunks = 1;
    uint32_t segment = 0, chunk = 0;

    bool is_done() const { return segment == segments; }
    void next() {
      if (++chunk == chunks) {
        chunk = 0;
        ++segment;
      }
    }
    bool is_before(const Walk& other) const {
      return segment < other.segment || (segment == other.segment && chunk < other.chunk);
    }
  };

  NORIA_HOT bool receive(RingCore& core, RingRun& run);
  NORIA_HOT bool send(RingCore& core, RingRun& run);

  bool is_root_ = false;
  Walk receiving_, received_;
  RequestFifo receives_;
  Walk sending_, sent_;
  RequestFifo sends_;
};

}  // namespace noria::bucketing
