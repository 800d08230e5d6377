// What a reducer is asked to be, checked: noria_reducer_config with its defaults filled in.
//
// Threads: any thread.
#pragma once

#include <noria/bucketing.h>

#include "base/clock.hpp"
#include "bucketing/plan.hpp"

namespace noria::bucketing {

struct ReducerConfig {
  bool arena = false;
  PlanCaps caps;
  noria_op op = NORIA_AVG;
  Nanoseconds step_timeout = 0;  // 0: the communicator's
  PlanKind plan = PlanKind::ddp;
};

}  // namespace noria::bucketing
