// Engine: the queue of collectives of a communicator and whoever drives them.
//
// Collectives run in order of submission. Whoever has the seat drives: a thread that waits for a
// result, which saves two thread switches a call, or the communication thread while nobody waits:
// it leaves the seat to who comes to wait, and takes it again when they have gone. A driver that
// finds nothing to move looks on for at most kLooksOn, then sleeps in Domain::arm_and_wait() with
// the seat, a quarter of the time it has waited at a time, since credits land without a completion.
// With nothing queued the seat is empty and the communication thread sleeps on a descriptor of its
// own, so that an idle engine costs nothing and a blocking call wakes nobody.
//
// Every collective has a bound: timeout without progress (nothing moved, and this rank owes
// nothing) fails it and, as the ring is then out of step, the communicator. A stopped peer
// is slow, not dead. At half of the bound, whoever's fault it is, a warning says what this rank
// waits for and what each rank owes; when the bound is over, the failure says it. A failure is
// sticky: the ring is closed first, so that no byte lands any more in buffers that are handed back,
// then everything queued and to come fails with the same text.
//
// Threads: submit(), try_run(), wake(), wait(), fail() any thread; create() and destructor init
// only.
#pragma once

#include <cstdint>
#include <memory>

#include "base/clock.hpp"
#include "bucketing/collective.hpp"
#include "bucketing/control.hpp"
#include "bucketing/open_steps.hpp"
#include "bucketing/ring.hpp"

namespace noria::bucketing {

class Engine {
 public:
  // `ring` null: one rank; collectives are copies. `steps`, which may be null, say what this rank
  // owes the others.
  static Outcome<std::unique_ptr<Engine>> create(std::unique_ptr<transport::Domain> domain,
                                                 std::unique_ptr<Ring> ring, ControlPlane* control,
                                                 Nanoseconds timeout, const OpenSteps* steps);
  ~Engine();
  // Fails what is queued and to come with ABORTED, on this rank alone. No call is under way.
  void stop();

  // Queues it. `wake_driver` false leaves the communication thread asleep: for callers that wait at
  // once and drive it themselves.
  void submit(Collective& collective, bool wake_driver);
  // A segment of a queued collective became ready. A system call only if the driver sleeps.
  NORIA_HOT void wake();
  // True when done; false when before that the deadline passed or `part` of it, if given, ended.
  // Drives meanwhile, in place of the communication thread.
  bool wait(Collective& collective, Nanoseconds deadline, Part* part = nullptr);
  // What fits into a line, where nothing is under way: begun and driven by the caller at once, with
  // no lock, allocation or switch of threads. OK with false: not begun, submit it.
  Outcome<bool> try_run(Kind kind, const Part* part);
  // Both: what became of it, within its own time-out.
  Outcome<Ok> run(Collective& collective) {
    submit(collective, false);
    wait(collective, kNever);
    if (collective.failure.code != NORIA_OK) return collective.failure;
    return Ok{};
  }

  // Everything queued and to come fails with this; announced to all ranks. ABORTED takes effect at
  // once, the rest when rank 0 answered, a second at most.
  void fail(const Failure& failure);
  bool failed() const;
  Failure failure() const;  // after failed()

  Ring* ring();                 // null with one rank
  transport::Domain* domain();  // null with one rank

 private:
  class State;
  explicit Engine(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace noria::bucketing
