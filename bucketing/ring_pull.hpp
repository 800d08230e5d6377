// RingPull: the reduce phase by one-sided reads of the left neighbour's memory.
//
// A chunk is read into a scratch block that stays in the cache, and added from there. Whoever is
// read from does nothing but say, in notices, how far it may be read; one notice speaks for as many
// items as became ready since the last. Where all input is ready from the start, the header says so
// and two ranks need no notice at all.
//
// Reads are issued kAhead chunks before the addition: more would hide no more latency and push
// each other out of the cache.
//
// Threads: the engine's driver, one at a time.
#pragma once

#include <cstdint>
#include <utility>

#include "bucketing/ring_core.hpp"
#include "bucketing/ring_inbox.hpp"
#include "bucketing/ring_outbox.hpp"
#include "bucketing/ring_run.hpp"
#include "bucketing/ring_wire.hpp"

namespace noria::bucketing {

class RingPull {
 public:
  static constexpr uint32_t kAhead = 2;
  static constexpr uint64_t kScratchBytes = kAhead * kChunkBytes;

  explicit RingPull(transport::Region scratch) : scratch_(std::move(scratch)) {}

  void begin(const RingCore& core, const RingRun& run);
  // The left neighbour's header came.
  void on_header(const RingCore& core, const RingHeader& header) {
    left_all_ready_ = (header.flags & kAllReady) != 0;
    left_notifies_ = !left_all_ready_ || core.steps() != 1;
  }
  // True when something moved. Adds at most one chunk.
  NORIA_HOT bool advance(RingCore& core, RingRun& run, RingInbox& inbox, RingOutbox& outbox);
  bool has_said_all() const { return !has_notice_to_send(); }

  const PipelineWalk& waits_at() const { return added_; }

 private:
  NORIA_HOT bool send_notice(RingCore& core, RingRun& run, RingOutbox& outbox);
  NORIA_HOT bool take_notices(RingCore& core, RingInbox& inbox);
  NORIA_HOT bool issue_reads(RingCore& core, RingRun& run);
  NORIA_HOT bool add_oldest(RingCore& core, RingRun& run);

  bool has_notice_to_send() const { return noticed_ != offered_.total() && needs_notices_; }
  bool left_is_ready() const {
    return issued_.index() < left_ready_ || (left_all_ready_ && issued_.step() == 0);
  }

  transport::Region scratch_;
  PipelineWalk issued_, added_;
  RequestFifo reads_;
  uint32_t issue_block_ = 0, add_block_ = 0;

  uint64_t left_ready_ = 0;  // items before it may be read, as the notices say
  bool left_all_ready_ = false;
  bool left_notifies_ = true;

  PipelineWalk offered_;  // what the right neighbour may read
  uint64_t noticed_ = 0;  // what it was told
  bool is_worth_saying_ = false;
  bool needs_notices_ = true;
};

}  // namespace noria::bucketing
