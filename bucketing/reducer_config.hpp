// What a reducer is asked to be, checked: noria_reducer_config with its defaults filled in.
//
// Threads: any thread.
#pragma once

#include <noria/bucketing.h>

#include "base/clock.hpp"
#include "bucketing/plan.hpp"

namespace noria::bucketing {

// By what buckets are filled and sent: the reverse of registration, or rank 0's order of arrival in
// the first step.
enum class Order : uint32_t { reverse = NORIA_ORDER_REVERSE, arrival = NORIA_ORDER_ARRIVAL };
enum class AverageMode : uint32_t { post = 0, pre = 1, split_sqrt = 2 };  // noria_reducer_config

// While one bucket is packed another is reduced.
inline constexpr uint32_t kDeviceSlots = 2;

struct ReducerConfig {
  bool arena = false;
  PlanCaps caps;
  noria_op op = NORIA_AVG;
  Nanoseconds step_timeout = 0;  // 0: the communicator's
  PlanKind plan = PlanKind::ddp;
  Order order = Order::reverse;
  AverageMode average = AverageMode::post;
  noria_dtype wire_dtype = 0;  // 0: as the gradient
  uint64_t given_plan = 0;     // fingerprint of a loaded plan; 0: none
  uint32_t unused = NORIA_UNUSED_ERROR;
  bool static_graph = false;
  bool is_nonfinite_error = false;
  bool is_sharded = false;  // buckets are reduced, and not gathered
  uint32_t hooks = 0;       // BucketHooks::moments()
  // Buckets that copies hold at once, 0: all; on a device between packed and unpacked, at least 1.
  uint32_t max_in_flight = 0;
  bool is_on_device = false;
};

}  // namespace noria::bucketing
