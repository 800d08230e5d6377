// What a reducer needs of its communicator.
//
// Threads: a value; any thread.
#pragma once

#include <cstdint>

#include "base/clock.hpp"
#include "bucketing/agreement.hpp"
#include "bucketing/control.hpp"
#include "bucketing/device_host.hpp"
#include "bucketing/engine.hpp"
#include "bucketing/open_steps.hpp"
#include "bucketing/timeline.hpp"

namespace noria::bucketing {

// What a communicator lends to its reducers, which must not outlive it.
struct ReducerHost {
  int32_t rank = 0;
  int32_t size = 1;
  Engine* engine = nullptr;
  ControlPlane* control = nullptr;  // null: one rank
  OpenSteps* open_steps = nullptr;
  Timeline* timeline = nullptr;  // null: nobody wants to see the steps
  DeviceHost device;
  Nanoseconds start_timeout = 0;
  Nanoseconds collective_timeout = 0;
};

// What agree() and its like ask the others by; a single rank asks itself.
Gather gather_among(const ReducerHost& host, Nanoseconds timeout);
// Since the communicator was made, by its device.
uint64_t moved_bytes(Engine& engine);

}  // namespace noria::bucketing
