// Asynchronous events of a context: what happens to a queue without a request that could report it.
//
// A peer that broke the rules of a connection raises IBV_EVENT_QP_ACCESS_ERR at the target; a
// completion queue that overran raises IBV_EVENT_CQ_ERR. Events of an object end with it.
//
// Threads: any thread.
#pragma once

#include <infiniband/verbs.h>

#include <deque>

#include "base/mutex.hpp"

namespace noria::soft {

struct AsyncEvents {
  Mutex mutex;
  std::deque<ibv_async_event> queue NORIA_GUARDED_BY(mutex);
};

void raise_event(ibv_qp* qp, ibv_event_type type);
void raise_event(ibv_cq* cq, ibv_event_type type);
// Drops the events of a queue pair or completion queue that goes away.
void forget_events(ibv_context* context, const void* object);
// Blocks as the context's async_fd does. 0, or -1 with errno set.
int take_async_event(ibv_context* context, ibv_async_event* out);

}  // namespace noria::soft
