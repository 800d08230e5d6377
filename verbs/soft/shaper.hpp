// Shaper: the virtual wire between two ports. It says when bytes arrive; it never waits.
//
// A port sends at most `rate` and receives at most `rate`; what arrives has been `latency` under
// way. Bytes cut through: the last one arrives duration + latency after the first one left, later
// where the receiving port is still busy with others.
//
// Time is virtual. A message may leave from the moment it was posted, not from the moment that
// software looked at it: a late wake-up delays what is seen, never what the wire does next, so that
// a stream keeps its rate to the nanosecond and no late wake-up adds up. A request is never faster
// than its bytes over the rate.
//
// The schedule of a port is two words that everybody who sends to or reads from it advances with
// compare-and-swap. They are the only shared words with more than one writer. A process that dies
// between any two instructions leaves at most a booking for bytes that never come.
//
// Fairness is by chunk: whoever books first goes first, and nobody books more than one chunk ahead.
//
// Threads: any thread of any process.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"
#include "base/units.hpp"

namespace noria::soft {

// Until when a port is busy. Lies in memory that all peers of the port may write.
struct PortSchedule {
  alignas(64) std::atomic<Nanoseconds> egress_free{0};
  alignas(64) std::atomic<Nanoseconds> ingress_free{0};
};
static_assert(std::atomic<Nanoseconds>::is_always_lock_free);

class Shaper {
 public:
  // `rate_gbit` 0: as fast as can be. Both 0: is_on() is false and nobody should ask.
  Shaper() = default;
  Shaper(double rate_gbit, double latency_us);

  bool is_on() const { return ns_per_byte_ > 0 || latency_ > 0; }
  Nanoseconds latency() const { return latency_; }

  // How much of a message's `remaining` bytes is booked and moved at a time. The last chunk is
  // small: moving it is the only copy that no transfer hides.
  static constexpr uint64_t chunk(uint64_t remaining) {
    if (remaining > kChunk + kLastChunk) return kChunk;
    return remaining > kLastChunk ? remaining - kLastChunk : remaining;
  }

  // Books `bytes` from one port to another, that may leave from `ready` on. When the last arrives.
  Nanoseconds send(PortSchedule& from, PortSchedule& to, Nanoseconds ready, uint64_t bytes) const;
  // The same for a read: the request travels first, then the bytes the other way.
  Nanoseconds read(PortSchedule& target, PortSchedule& reader, Nanoseconds ready,
                   uint64_t bytes) const {
    return send(target, reader, ready + latency_, bytes);
  }
  // When the sender of what arrived at `arrival` knows of it.
  Nanoseconds acknowledged(Nanoseconds arrival) const { return arrival + latency_; }

  // Time on the wire of `bytes`, rounded up.
  Nanoseconds duration(uint64_t bytes) const;

 private:
  static constexpr uint64_t kChunk = 256_KiB;
  static constexpr uint64_t kLastChunk = 16_KiB;

  double ns_per_byte_ = 0;
  Nanoseconds latency_ = 0;
};

}  // namespace noria::soft
