// Ring::State: the phases of a ring and the order in which they are asked.
//
// Threads: as Ring.
#pragma once

#include <cstdint>
#include <string>

#include "bucketing/control.hpp"
#include "bucketing/ring.hpp"
#include "bucketing/ring_broadcast.hpp"
#include "bucketing/ring_core.hpp"
#include "bucketing/ring_gather.hpp"
#include "bucketing/ring_inbox.hpp"
#include "bucketing/ring_lines.hpp"
#include "bucketing/ring_outbox.hpp"
#include "bucketing/ring_pull.hpp"
#include "bucketing/ring_push.hpp"
#include "bucketing/ring_run.hpp"
#include "bucketing/ring_wire.hpp"

namespace noria::bucketing {

class Ring::State {
 public:
  // Registered memory of the ring itself.
  struct Memory {
    transport::Region inbox, outbox, scratch, slots, staging;
  };
  State(transport::Domain& domain, RingPlace place, RingLinks links, RingFetch fetch, Memory memory,
        ControlPlane* control);

  void start(Collective& collective);
  NORIA_HOT Progress advance();
  void close();
  void start_counting() { core_.count_after(sequence_); }

  const Failure& failure() const { return core_.failure(); }
  std::string waiting_for() const;
  RingFetch fetch() const { return fetch_; }
  const RingPlace& place() const { return core_.place(); }
  ControlPlane& control() { return *control_; }

 private:
  NORIA_HOT Progress advance_lines();
  // Out of line: only where nothing moved.
  [[gnu::noinline]] NORIA_HOT void look_around_lines();
  void look_for_line();
  bool drop_wake(const RingInbox::Message& message);
  std::string line_awaited(const std::string& from) const;
  NORIA_HOT bool exchange_headers();
  NORIA_HOT bool send_ahead();
  NORIA_HOT bool work();
  bool needs_left() const;
  bool needs_right() const;
  bool should_pull(const Collective& collective) const;
  bool carries_chunk();
  RingHeader make_header(const Collective& collective) const;
  NORIA_HOT bool send_header();
  NORIA_HOT bool take_header(const RingInbox::Message& message);
  bool is_header_right(const RingHeader& header);

  const RingFetch fetch_;
  bool pulls_ = false;  // the current collective
  // Memory and what uses it come before the connections, which must hang up first.
  RingInbox inbox_;
  RingOutbox outbox_;
  RingLines lines_;
  RingRun run_;
  RingPull pull_;
  RingPush push_;
  RingGather gather_;
  RingBroadcast broadcast_;
  RingCore core_;
  ControlPlane* control_;  // borrowed; outlives the ring

  uint64_t sequence_ = 0;       // of the current collective
  RingHeader header_;           // what this rank says of it
  RingRun::Piece first_piece_;  // what goes with the header, if it carries a chunk
  bool has_sent_header_ = false;
  bool has_left_header_ = false;
  std::string waited_for_;  // when it was closed
};

}  // namespace noria::bucketing
