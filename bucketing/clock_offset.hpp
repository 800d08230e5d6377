// How far two ranks' monotonic clocks are apart, so that their steps can be drawn on one.
//
// The ranks go through some gathers of the control plane together, each with its clock read before
// and after. A rank entered before rank 0 was done, and was done after rank 0 entered: each gather
// bounds the offset from both sides, with no assumption on how long a message takes, and all of
// them together as tightly as the best did. On one host the clocks are one and the offset is 0.
//
// Threads: any thread; measure_clock() as all_gather().
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "bucketing/control.hpp"
#include "bucketing/failure.hpp"

namespace noria::bucketing {

// This rank's clock less rank 0's, when it was measured; clocks of two hosts drift apart later.
struct ClockOffset {
  Nanoseconds offset = 0;
  Nanoseconds error = 0;     // at most so much off
  Nanoseconds measured = 0;  // by this rank's clock
};

// A gather as one rank saw it.
struct ClockReading {
  Nanoseconds entered = 0, left = 0;
};

// Pure. The same gathers as this rank and as rank 0 saw them.
ClockOffset clock_offset(std::span<const ClockReading> mine, std::span<const ClockReading> root);

// Collective. `boot_id` tells hosts apart: equal, the clock is one.
Outcome<ClockOffset> measure_clock(ControlPlane& control, const std::string& boot_id,
                                   Nanoseconds deadline);

// Of the running kernel; empty where it cannot be read, which is like no other.
std::string read_boot_id();

}  // namespace noria::bucketing
