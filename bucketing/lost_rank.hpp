// await_who_was_lost: behind a failure by which NCCL saw that a connection broke, until the control
// plane says whose.
//
// NCCL knows no names, and its word comes first: whoever passed it on at once would hide which rank
// died. Waits for the engine to fail by the control plane's word, for a second at most, and only
// behind a failure of that kind.
//
// Threads: any.
#pragma once

#include "base/clock.hpp"
#include "bucketing/engine.hpp"
#include "bucketing/failure.hpp"
#include "bucketing/pause.hpp"

namespace noria::bucketing {

inline void await_who_was_lost(const Engine& engine, const Failure& failure) {
  if (failure.code != NORIA_E_PEER) return;
  const Pause pause;
  for (const Nanoseconds until = now_ns() + 1_s; !engine.failed() && now_ns() < until;)
    pause.take();
}

}  // namespace noria::bucketing
