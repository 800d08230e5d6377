// RingPush: the reduce phase by messages, where reads are dear, or where nothing but it is asked
// for: a message that is through says that what was sent may be written again, and no gather phase
// follows that would say so of a read.
//
// Each partial chunk is sent into a staging slot of the right neighbour and added from there. The
// slots are the inbox's, so that a slow neighbour takes as many chunks as it has slots and no more.
//
// Threads: the engine's driver, one at a time.
#pragma once

#include <cstdint>

#include "bucketing/ring_core.hpp"
#include "bucketing/ring_inbox.hpp"
#include "bucketing/ring_outbox.hpp"
#include "bucketing/ring_partials.hpp"
#include "bucketing/ring_run.hpp"

namespace noria::bucketing {

class RingPush {
 public:
  static constexpr uint32_t kInboxSlots = 4;
  static constexpr uint64_t kInboxSlotBytes = kChunkBytes;

  // `stays_close`: where sending is a copy by this CPU, what is sent far ahead pushes what is to be
  // added out of the cache. Elsewhere the neighbour's slots are the bound.
  explicit RingPush(bool stays_close) : stays_close_(stays_close) {}

  // False after core.fail().
  bool begin(RingCore& core, const RingRun& run);
  // True when something moved. Adds at most one chunk.
  NORIA_HOT bool advance(RingCore& core, RingRun& run, RingInbox& inbox, RingOutbox& outbox);
  // The half of advance() that needs nothing of the left neighbour.
  NORIA_HOT bool send_chunks(RingCore& core, RingRun& run, RingOutbox& outbox);
  // The first chunk went with the header.
  void on_sent_with_header(RingRun& run) {
    run.on_started(sent_.segment());
    sent_.next();
  }
  bool has_sent_all() const { return sent_.is_done(); }

  const PipelineWalk& waits_at() const { return added_; }

 private:
  NORIA_HOT bool add_oldest(RingCore& core, RingRun& run, RingInbox& inbox, RingOutbox& outbox);
  NORIA_HOT bool add(RingCore& core, RingRun& run, RingInbox& inbox, const RingOutbox& outbox,
                     const RingRun::Piece& piece);

  const bool stays_close_;
  PipelineWalk sent_, added_;
  RingPartials partials_;  // where run.lacks_partials()
};

}  // namespace noria::bucketing
