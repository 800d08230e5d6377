// RingLines: collectives that fit into one line of memory: a barrier, and an all-reduce of up to
// RingLine::kMostBytes.
//
// Each rank's line goes once round the ring, written straight into memory that the next rank
// watches: no credit, no completion, no request, and one look at one cache line to find it. Then
// each rank adds all inputs itself, in the order of ranks, which is the order of the long way for
// so few bytes: results are bitwise the same on all ranks, and as a longer array's would be. n - 1
// hops, where the long way takes 2 (n - 1); for two ranks, one line each way.
//
// Two sets of n - 1 slots are enough. Who writes line k has ended k - 1, so it has the right
// neighbour's line of k - 1, which that one sent after it had ended k - 2 and used its slots.
// Nobody waits for a line that was sent to land: it is taken at once, and before a communicator's
// queue pairs go, all ranks have said that they leave (Comm::end).
//
// A line comes without a completion, so that it wakes nobody. Who may have kept its right neighbour
// waiting for so long that this one sleeps, sends a RingWake behind its line.
//
// Times of the part are not told.
//
// A rank whose left neighbour called something else fails, and passes nothing on, so that no rank
// ends a collective that another did not call.
//
// Threads: the engine's driver, one at a time.
#pragma once

#include <cstdint>
#include <utility>

#include "base/clock.hpp"
#include "bucketing/ring_core.hpp"
#include "bucketing/ring_line.hpp"
#include "bucketing/ring_outbox.hpp"
#include "bucketing/seat.hpp"

namespace noria::bucketing {

class RingLines {
 public:
  // Memory for the lines of the left neighbour.
  static uint64_t bytes_of(uint32_t ranks) { return 2 * uint64_t{ranks - 1} * sizeof(RingLine); }
  // Whether a collective goes this way: the same on all ranks that call the same.
  static bool fit(const Collective& collective);

  RingLines(const RingPlace& place, transport::Region memory, transport::RemoteRegion right)
      : hops_(place.size - 1), memory_(std::move(memory)), right_(right) {}

  // `sequence` is the ring's.
  void begin(const Collective& collective, uint64_t sequence);
  void end() { collective_ = nullptr; }
  bool is_active() const { return collective_ != nullptr; }
  // Sends and takes lines. True when something moved.
  NORIA_HOT bool advance(RingCore& core, RingOutbox& outbox);
  NORIA_HOT bool is_done() const { return taken_ == hops_ && sent_ == hops_; }
  // Hands over the result.
  NORIA_HOT void deliver(const RingCore& core);

  // What the left neighbour calls in collective `sequence`, of which this rank has called none by a
  // line: null for nothing, or not yet.
  const LineCall* heard_of(uint64_t sequence) const;
  const LineCall& called() const { return own_.call; }
  // The next line is there.
  NORIA_HOT bool has_next() const {
    return !has_taken_all() && slot(own_.number, taken_).has_landed(own_.number);
  }
  bool has_taken_all() const { return taken_ == hops_; }
  bool has_sent_own() const { return sent_ != 0; }
  bool has_sent_all() const { return sent_ == hops_; }
  uint32_t taken() const { return taken_; }

 private:
  NORIA_HOT bool send(RingCore& core, RingOutbox& outbox);
  NORIA_HOT bool take_next(RingCore& core);
  NORIA_COLD void fail_differing(RingCore& core, const RingLine& line) const;
  NORIA_COLD void wake_right(RingCore& core, RingOutbox& outbox);
  RingLine& slot(uint32_t number, uint32_t hop) const {
    NORIA_DCHECK(hop < hops_, "so many lines do not come");
    auto* lines = reinterpret_cast<RingLine*>(memory_.base());
    return lines[offset_of(number) + hop];
  }
  uint64_t offset_of(uint32_t number) const { return (number & 1) != 0 ? hops_ : 0; }

  const uint32_t hops_;
  transport::Region memory_;
  const transport::RemoteRegion right_;
  const Collective* collective_ = nullptr;
  uint32_t taken_ = 0, sent_ = 0;  // lines of this collective
  uint64_t sequence_ = 0;
  RingLine own_;  // its number is that of the last collective that went this way
  Nanoseconds sent_at_ = 0;
  bool has_waited_ = false;  // since it sent last
};

}  // namespace noria::bucketing
