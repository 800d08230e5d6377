#include "verbs/soft/async_events.hpp"

#include <errno.h>
#include <unistd.h>

#include <algorithm>

#include "verbs/soft/device.hpp"

namespace noria::soft {
namespace {

void raise(ibv_context* context, const ibv_async_event& event) {
  Context& c = context_of(context);
  {
    MutexLock lock(c.async.mutex);
    c.async.queue.push_back(event);
  }
  signal_event(context->async_fd);
}

}  // namespace

void raise_event(ibv_qp* qp, ibv_event_type type) {
  ibv_async_event event{};
  event.element.qp = qp;
  event.event_type = type;
  raise(qp->context, event);
}

void raise_event(ibv_cq* cq, ibv_event_type type) {
  ibv_async_event event{};
  event.element.cq = cq;
  event.event_type = type;
  raise(cq->context, event);
}

void forget_events(ibv_context* context, const void* object) {
  Context& c = context_of(context);
  MutexLock lock(c.async.mutex);
  std::erase_if(c.async.queue,
                [object](const ibv_async_event& event) { return event.element.qp == object; });
}

int take_async_event(ibv_context* context, ibv_async_event* out) {
  Context& c = context_of(context);
  while (true) {
    // The descriptor counts one for each event; a forgotten event leaves a count without one.
    uint64_t one = 0;
    if (::read(context->async_fd, &one, sizeof one) < 0) return -1;
    MutexLock lock(c.async.mutex);
    if (c.async.queue.empty()) continue;
    *out = c.async.queue.front();
    c.async.queue.pop_front();
    return 0;
  }
}

}  // namespace noria::soft
