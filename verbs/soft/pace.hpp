// Pace: where a send queue stands on a shaped link.
//
// The next request is booked chunk by chunk: a chunk moves when the wire has delivered it, not
// before. A request that took effect waits in the send queue until its poster may know.
//
// Threads: under Qp::exec, but for `due`.
#pragma once

#include <atomic>
#include <cstdint>

#include "base/clock.hpp"
#include "verbs/soft/shaper.hpp"

namespace noria::soft {

struct Qp;
struct Wqe;

struct Pace {
  uint64_t booked = 0;         // bytes of the next request that have their time on the wire
  bool is_booked = false;      // also where it has no bytes
  Nanoseconds arrival = 0;     // when the last of them is at its end
  Nanoseconds not_before = 0;  // the target took no requests until then, so that none left before
  std::atomic<Nanoseconds> due{0};  // nothing happens before; for who looks after the queue

  void next_request() {
    booked = 0;
    is_booked = false;
  }
};

// Books what is next of `wqe`, if it is not yet. Whether all that is booked has been delivered.
bool is_delivered(Qp& qp, const Wqe& wqe, Nanoseconds now);
// When the poster of a request that was delivered just now may know of it.
Nanoseconds known_at(const Qp& qp, const Wqe& wqe);

}  // namespace noria::soft
