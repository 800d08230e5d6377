// Ring: runs one Collective at a time over connections to the left and right neighbour.
//
// The reduce phase fetches the left neighbour's partial chunk (one-sided read into a cache-hot
// block, or a message into a slot: see RingFetch) and adds; the gather phase sends each finished
// chunk into the neighbour's final buffer. Every rank walks the
// segments in the same order, so messages match without tags, and each chunk is added in ring order
// whatever the order of arrival: results are bitwise equal on all ranks.
//
// start() and advance() never block. advance() does no allocation, lock or system call of its own.
//
// Threads: connect() init only; the rest the engine's driver, one at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "base/check.hpp"
#include "base/params.hpp"
#include "bucketing/collective.hpp"
#include "bucketing/control.hpp"
#include "bucketing/failure.hpp"
#include "bucketing/ring_core.hpp"
#include "verbs/transport/domain.hpp"

namespace noria::bucketing {

class Ring {
 public:
  // Collective over `control`: agrees on the fetch mode and connects the neighbours. Blocks at most
  // until `deadline`.
  static Outcome<std::unique_ptr<Ring>> connect(transport::Domain& domain, ControlPlane& control,
                                                const Params& params, const std::string& host,
                                                Nanoseconds deadline);
  ~Ring();

  // The ring over connections that stand already. `control` serves exchange_parts() only.
  static Outcome<std::unique_ptr<Ring>> over(transport::Domain& domain, RingPlace place,
                                             RingLinks links, RingFetch fetch,
                                             ControlPlane* control);

  // Exchanges RemoteParts for a collective that will run many times. Collective over `control`.
  Outcome<Ok> exchange_parts(Collective& collective, Nanoseconds deadline);

  enum class Progress { none, some, finished, failed };

  // Makes it the current one; there must be none.
  void start(Collective& collective);
  // Moves the current collective and polls the domain, also when there is none. Adds one chunk at
  // most, so that a call takes tens of microseconds. None: all that is left waits for a neighbour,
  // or for a segment to become ready here.
  NORIA_HOT Progress advance();
  const Failure& failure() const;  // after failed: the ring can only be destroyed

  // Gives up: closes the connections and forgets the current collective. No byte lands in anybody's
  // memory afterwards, so that the engine may hand failed buffers back. Only failure(),
  // waiting_for(), fetch() and the destructor follow.
  void close();

  // Texts call the next collective the first: those before were none of the caller's. On all ranks,
  // with none under way.
  void start_counting();

  // What it waits for now, for time-outs: "segment 3 of 12 from rank 2".
  std::string waiting_for() const;
  RingFetch fetch() const;

 private:
  class State;
  explicit Ring(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace noria::bucketing
