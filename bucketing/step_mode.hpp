// StepMode: how a reducer's open step was begun, and so what becomes of what is given in it.
//
// Threads: written before the step lets anybody in; then any thread may read.
#pragma once

#include <cstdint>

#include "base/clock.hpp"

namespace noria::bucketing {

struct StepMode {
  Nanoseconds begun_ns = 0;
  uint64_t moved_before = 0;  // bytes that the device had moved when it began
  bool accumulates = false;   // it only does that
  bool is_deferred = false;   // what comes in it is not sent before its end
  bool is_shadow = false;     // this rank only keeps the others company
  bool is_unusual = false;    // deferred, observed, or looked through for what is not finite
};

}  // namespace noria::bucketing
