// Collective: one operation on the ring, from submission to result.
//
// A call of the C API has one part; a reducer's step is one collective whose parts are its
// buckets in plan order, then a part that carries the step's verdict (op max), so that every rank
// learns of every rank's error in the same step. Segments of all parts flow through the
// ring as one stream: no bubble between buckets.
//
// Whoever makes it owns it, with the memory and regions it names, until is_done(). The segments'
// readiness is set by others while the ring runs.
//
// Threads: filled in by its maker before submit(); then the engine's, but for `pending` (any thread
// counts down with release, the ring reads with acquire), `state` (written once by the engine with
// release, read by anyone with acquire) and Part::has_ended(). Times and failure are read after
// is_done().
#pragma once

#include <noria/bucketing.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "bucketing/failure.hpp"
#include "bucketing/segments.hpp"
#include "verbs/transport/region.hpp"

namespace noria::bucketing {

enum class Kind : uint8_t {
  all_reduce = 1,
  broadcast = 2,
  barrier = 3,
  reduce_scatter = 4,
  all_gather = 5,
};

// Which halves of an all-reduce a part goes through.
enum class Phases : uint8_t { both = 0, reduce = 1, gather = 2 };

struct Part {
  const std::byte* in = nullptr;  // may equal out
  std::byte* out = nullptr;
  uint64_t count = 0;  // elements, of all blocks
  noria_dtype dtype = NORIA_FLOAT32;
  noria_op op = NORIA_SUM;
  // One phase alone: rank r owns the elements [edges[r], edges[r + 1]), its block. `reduce` reads
  // all of `in` and leaves the reduction of the own block: where it lies in a part with an
  // out_region, at `out` otherwise. `gather` takes the own block from `in`, which may be its place
  // in `out`.
  Phases phases = Phases::both;
  std::vector<uint64_t> edges;  // ranks + 1 with one phase; empty with both
  // Of an average: what inputs are divided by before they are added. The sum is divided by what is
  // left of the number of ranks.
  uint32_t input_divisor = 1;
  // Not null: inputs and results, of float32. `in` and `out` are then one piece of memory of count
  // elements of the narrower dtype, in which each hop rounds what it sends. Everybody, the rank
  // that finishes a chunk too, takes the rounded value for the result. Needs regions.
  float* wide = nullptr;
  // Registered memory that covers [in, in + bytes) and [out, out + bytes); null lets the ring
  // register for the time of the collective.
  const transport::Region* in_region = nullptr;
  const transport::Region* out_region = nullptr;

  // Filled in by the ring; ns of CLOCK_MONOTONIC.
  int64_t start_ns = 0;  // first segment under way
  int64_t end_ns = 0;    // last segment done; by set_end() while somebody may look
  int64_t wire_ns = 0;   // time with at least one segment under way

  // release: publishes the part's result; pairs with has_ended(). 0: not ended.
  void set_end(int64_t ns) { std::atomic_ref(end_ns).store(ns, std::memory_order_release); }
  // The result is in place, though the collective may still go on.
  bool has_ended() { return std::atomic_ref(end_ns).load(std::memory_order_acquire) != 0; }
};

// Where the ring neighbour to the left keeps the same part; learnt once for prepared collectives,
// else carried by the header message of each call.
struct RemotePart {
  transport::RemoteRegion in_region, out_region;
  uint64_t in_offset = 0, out_offset = 0;
};

struct Collective {
  enum class State : int32_t { queued = 0, running = 1, done = 2 };

  Kind kind = Kind::all_reduce;
  int32_t root = 0;  // broadcast
  std::vector<Part> parts;
  std::vector<Segment> segments;  // cut_segments() of the parts
  std::vector<RemotePart> left;   // empty: exchanged by the header message
  // One a segment, 0 is ready; null: all are ready. Of slices the first one's counts for all.
  std::atomic<uint32_t>* pending = nullptr;
  uint64_t fingerprint = 0;       // of kind, root and the parts' shapes, dtypes and ops
  bool has_single_phase = false;  // some part goes through one phase only
  // This rank has given all that it can, and waits for others; null: when all segments are ready.
  const std::atomic<bool>* is_waited_for = nullptr;
  // Without progress, while this rank owes nothing; 0: the engine's.
  int64_t timeout_ns = 0;

  std::atomic<State> state{State::queued};
  Failure failure{NORIA_OK, {}};  // code NORIA_OK: success

  bool is_done() const { return state.load(std::memory_order_acquire) == State::done; }
};

// All of its segments are.
bool is_ready(const Collective& collective);
// Nothing is left for this rank but to wait for others.
bool owes_nothing(const Collective& collective);
// For texts.
const char* name_of(const Collective& collective);

// The first half of a division by sqrt(ranks) twice: the power of two that is not below, which
// rounds nothing.
uint32_t split_divisor(uint32_t ranks);

// Cuts the segments and computes the fingerprint. Call after the parts are set.
void prepare(Collective& collective, uint32_t ranks);

}  // namespace noria::bucketing
