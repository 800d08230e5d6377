// The clock of the device: the host's monotonic one; or, in a process that took time into its own
// hands (ibv_noria_turn), one that stands still between its calls.
//
// Shaping, timeouts, ticks and faults go by it. Waits for the operating system, for peers that hold
// a mark and for an application's acknowledgement go by the host's.
//
// Threads: any thread; stand_at() one at a time.
#pragma once

#include "base/clock.hpp"

namespace noria::soft {

Nanoseconds device_now();
// From now on the device's time is this one; it never goes back.
void stand_at(Nanoseconds now);
bool is_time_standing();

}  // namespace noria::soft
