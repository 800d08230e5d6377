#include "verbs/soft/shaper.hpp"

#include <algorithm>
#include <cmath>

namespace noria::soft {
namespace {

// Takes the next `duration` of a port, not before `ready`; returns its start.
Nanoseconds reserve(std::atomic<Nanoseconds>& free, Nanoseconds ready, Nanoseconds duration) {
  // relaxed throughout: the word is the whole message; nothing else is published by it.
  Nanoseconds old = free.load(std::memory_order_relaxed);
  Nanoseconds start;
  do {
    start = std::max(ready, old);
  } while (!free.compare_exchange_weak(old, start + duration, std::memory_order_relaxed));
  return start;
}

}  // namespace

Shaper::Shaper(double rate_gbit, double latency_us)
    : ns_per_byte_(rate_gbit > 0 ? 8 / rate_gbit : 0),
      latency_(static_cast<Nanoseconds>(std::llround(latency_us * 1000))) {}

Nanoseconds Shaper::duration(uint64_t bytes) const {
  return static_cast<Nanoseconds>(std::ceil(static_cast<double>(bytes) * ns_per_byte_));
}

Nanoseconds Shaper::send(PortSchedule& from, PortSchedule& to, Nanoseconds ready,
                         uint64_t bytes) const {
  const Nanoseconds busy = duration(bytes);
  if (busy == 0) return ready + latency_;  // takes no room on the wire
  const Nanoseconds left = reserve(from.egress_free, ready, busy);
  return reserve(to.ingress_free, left + latency_, busy) + busy;
}

}  // namespace noria::soft
