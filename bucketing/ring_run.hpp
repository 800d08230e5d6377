// RingRun: the collective under way, as this rank sees it: where its bytes are, how far each
// segment is, and what is to be given back at the end.
//
// begin() may allocate and registers memory that came without a region; afterwards nothing
// allocates. Memory registered here is released by end(): when the last finished chunk is here, all
// reads and writes that concern it are done, because each finished chunk has passed through every
// rank.
//
// Threads: the engine's driver, one at a time.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "base/clock.hpp"
#include "bucketing/collective.hpp"
#include "bucketing/kernels.hpp"
#include "bucketing/ring_core.hpp"
#include "bucketing/ring_wire.hpp"

namespace noria::bucketing {

// A piece of memory inside a registered region.
struct Place {
  const transport::Region* region = nullptr;
  std::byte* data = nullptr;

  Place at(uint64_t offset) const { return {region, data + offset}; }
  uint64_t offset() const { return static_cast<uint64_t>(data - region->base()); }
};

class RingRun {
 public:
  // Up to this size the caller's bytes are copied through memory that is registered once and for
  // all: cheaper than to register theirs.
  static constexpr uint64_t kStagedBytes = 64_KiB;
  // Of a part that is larger, input and result are seldom in a cache when their turn comes.
  static constexpr uint64_t kColdBytes = 8_MiB;
  // Room for the header of the message that carries the first chunk; input; result.
  static constexpr uint64_t kStagingBytes = kHeaderRoom + 2 * kStagedBytes;

  explicit RingRun(transport::Region staging) : staging_(std::move(staging)) {}

  // False after core.fail().
  bool begin(RingCore& core, Collective& collective);
  // Hands over the result where that is not in place yet. Call it before end() on success.
  void deliver();
  void end();

  bool is_active() const { return collective_ != nullptr; }
  Collective& collective() { return *collective_; }
  const Collective& collective() const { return *collective_; }
  uint32_t segments() const { return static_cast<uint32_t>(segments_.size()); }

  // What leaves this rank first lies behind kHeaderRoom bytes that are free.
  bool is_staged() const { return is_staged_; }

  // Some of the caller's memory was registered for this collective.
  bool has_registered_memory() const { return !regions_.empty(); }

  // What this rank tells its right neighbour of the only part.
  RemotePart own_part() const;
  void set_left(const RemotePart& part) { parts_.front().left = part; }

  // One chunk of one segment.
  struct Piece {
    uint32_t part = 0;
    uint64_t count = 0;   // elements
    uint64_t offset = 0;  // bytes within the part
    uint64_t bytes = 0;
  };
  // Without bytes if the part does not go through that phase.
  NORIA_HOT Piece piece(uint32_t segment, uint32_t chunk, Phases phase) const;
  NORIA_HOT Place in(const Piece& piece) const { return parts_[piece.part].in.at(piece.offset); }
  NORIA_HOT Place out(const Piece& piece) const { return parts_[piece.part].out.at(piece.offset); }
  const RemotePart& left(const Piece& piece) const { return parts_[piece.part].left; }

  // This rank's own input of the segment is complete.
  NORIA_HOT bool is_ready(uint32_t segment) const {
    // Acquire: pairs with the release of whoever counted down after writing the last element.
    return pending_ == nullptr ||
           pending_[segment - segments_[segment].slice].load(std::memory_order_acquire) == 0;
  }
  bool all_ready() const { return pending_ == nullptr; }

  // The piece's memory was last touched too long ago to be in a cache.
  NORIA_HOT bool is_cold(const Piece& piece) const {
    const PartRun& part = parts_[piece.part];
    return part.part->count * part.element_bytes >= kColdBytes;
  }

  // Where the sum of a piece goes.
  NORIA_HOT std::byte* sum(const Piece& piece, uint32_t step) const {
    const PartRun& part = parts_[piece.part];
    return is_last(step) ? part.result + (piece.offset - part.result_at)
                         : part.out.data + piece.offset;
  }
  // But partial sums have no place, and the caller of add() must find one.
  bool lacks_partials() const { return lacks_partials_; }
  // Every part goes through both phases, and travels as it is.
  bool is_plain() const { return is_plain_; }

  bool is_last(uint32_t step) const { return step + 1 == steps_; }

  // to = fetched op in, and the divisions of an average.
  NORIA_HOT void add(const Piece& piece, std::byte* to, const std::byte* fetched, uint32_t step);
  // The same out of a slot that the left neighbour's processor will fill again.
  NORIA_HOT void add_slot(const Piece& piece, std::byte* to, std::byte* slot, uint32_t step);

  // A part that travels narrow: before the first step's piece of a segment leaves this rank, rounds
  // the input to it, once. False: there was nothing to do.
  NORIA_HOT bool round_input(uint32_t segment, const Piece& piece);
  // After a finished piece came: widens it into the result. False as above.
  NORIA_HOT bool widen_result(const Piece& piece);

  // Before this rank's piece of an all-gather is sent: copies it to its place in the result. False
  // if it is there.
  NORIA_HOT bool place_own(const Piece& piece);

  // Steps of the segment that are through.
  uint32_t reduced(uint32_t segment) const { return segments_[segment].reduced; }
  uint32_t gathered(uint32_t segment) const { return segments_[segment].gathered; }
  NORIA_HOT void on_started(uint32_t segment);  // again and again is fine
  NORIA_HOT void on_reduced(uint32_t segment) {
    ++segments_[segment].reduced;
    on_step(segment);
  }
  NORIA_HOT void on_gathered(uint32_t segment) {
    ++segments_[segment].gathered;
    on_step(segment);
  }
  NORIA_HOT void on_sent(uint32_t segment) { on_step(segment); }

 private:
  struct PartRun {
    Part* part = nullptr;
    const std::byte* own = nullptr;  // this rank's addend, or its block of an all-gather
    Place in, out;                   // what travels
    std::byte* result = nullptr;     // of additions, from byte result_at of the part on
    uint64_t result_at = 0;
    RemotePart left;
    Phases phases = Phases::both;
    bool adds_plainly = true;  // no input is divided, none travels narrow
    uint32_t element_bytes = 4;
    uint32_t segments_left = 0;
    uint32_t under_way = 0;
    Nanoseconds under_way_since = 0;
  };
  struct SegmentRun {
    uint32_t reduced = 0, gathered = 0;
    uint32_t steps_left = 0;  // of all kinds; 0: done
    uint32_t slice = 0;       // of the same blocks, which become ready at once
    bool is_started = false, is_rounded = false;
  };

  bool place_part(RingCore& core, Part& part, bool uses_in, bool uses_out, PartRun* run);
  NORIA_HOT void add_otherwise(const PartRun& part, const Piece& piece, std::byte* to,
                               const std::byte* fetched, uint32_t step) const;
  NORIA_HOT const Segment& segment_at(uint32_t turn) const {
    return collective_->segments[goes_backward_ ? segments() - 1 - turn : turn];
  }
  NORIA_HOT Piece block_piece(const Segment& segment, uint32_t chunk, Phases phase) const;
  void stage_input(const RingPlace& place, bool is_whole);
  const transport::Region* register_memory(RingCore& core, std::byte* data, uint64_t bytes);
  NORIA_HOT void on_step(uint32_t segment) {
    if (--segments_[segment].steps_left == 0) on_done(segment);
  }
  NORIA_HOT void on_done(uint32_t segment);

  transport::Region staging_;
  bool is_staged_ = false;
  bool lacks_partials_ = false;
  bool is_plain_ = true;
  // Large all-reduces of which all is ready go from start to end and from end to start in turn:
  // what the last one touched last, which a cache may still hold, the next one touches first.
  bool goes_backward_ = false;
  bool is_backwards_turn_ = false;
  Collective* collective_ = nullptr;
  const std::atomic<uint32_t>* pending_ = nullptr;
  RingPlace place_;
  uint32_t ranks_ = 1, steps_ = 0;
  std::vector<transport::Region> regions_;  // registered for this collective only
  std::vector<PartRun> parts_;
  std::vector<SegmentRun> segments_;
};

}  // namespace noria::bucketing
