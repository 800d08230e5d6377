// Asynchronous events of a context: what happens to a queue without a request that could report it.
//
// A peer that broke the rules of a connection raises IBV_EVENT_QP_ACCESS_ERR at the target. A
// completion queue that overran raises IBV_EVENT_CQ_ERR, and IBV_EVENT_QP_FATAL for each queue pair
// that completes there. A shared receive queue that ran low raises IBV_EVENT_SRQ_LIMIT_REACHED, and
// a queue pair in error that takes no more from it IBV_EVENT_QP_LAST_WQE_REACHED. What faults.hpp
// does to a port or a device raises IBV_EVENT_PORT_ERR, PORT_ACTIVE and DEVICE_FATAL.
//
// Events of an object that nobody has taken end with it; for those that were taken its destruction
// waits until they are acknowledged.
//
// The descriptor of the context is readable while an event is there to be taken.
//
// Threads: any thread.
#pragma once

#include <infiniband/verbs.h>

#include <deque>
#include <vector>

#include "base/mutex.hpp"

namespace noria::soft {

struct AsyncEvents {
  Mutex mutex;
  CondVar acknowledged;
  std::deque<ibv_async_event> queue NORIA_GUARDED_BY(mutex);
  // The objects of events that were taken and not yet acknowledged, once for each.
  std::vector<const void*> open NORIA_GUARDED_BY(mutex);
};

// Of the device's port, or of the device as a whole.
void raise_event(ibv_context* context, ibv_event_type type);
void raise_event(ibv_qp* qp, ibv_event_type type);
void raise_event(ibv_cq* cq, ibv_event_type type);
void raise_event(ibv_srq* srq, ibv_event_type type);
// Drops the events of a queue pair or completion queue that goes away, and waits until those that
// were taken are acknowledged. False, with a line in the log, after ten seconds.
bool end_events(ibv_context* context, const void* object);
// Blocks as the context's async_fd does. 0, or -1 with errno set.
int take_async_event(ibv_context* context, ibv_async_event* out);
void acknowledge_async_event(const ibv_async_event& event);

}  // namespace noria::soft
