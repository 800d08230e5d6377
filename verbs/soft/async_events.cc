#include "verbs/soft/async_events.hpp"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "verbs/soft/device.hpp"

namespace noria::soft {
namespace {

// The context that an event's object is of; null if it is about none.
ibv_context* context_of_event(const ibv_async_event& event) {
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR: return event.element.cq->context;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR:
    case IBV_EVENT_QP_LAST_WQE_REACHED: return event.element.qp->context;
    case IBV_EVENT_SRQ_ERR:
    case IBV_EVENT_SRQ_LIMIT_REACHED: return event.element.srq->context;
    default: return nullptr;
  }
}

// The descriptor counts one for each event in the queue, and both change under the lock.
void raise(ibv_context* context, const ibv_async_event& event) {
  AsyncEvents& async = context_of(context).async;
  MutexLock lock(async.mutex);
  async.queue.push_back(event);
  signal_event(context->async_fd);
}

}  // namespace

void raise_event(ibv_context* context, ibv_event_type type) {
  ibv_async_event event{};
  event.element.port_num = 1;
  event.event_type = type;
  raise(context, event);
}

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

void raise_event(ibv_srq* srq, ibv_event_type type) {
  ibv_async_event event{};
  event.element.srq = srq;
  event.event_type = type;
  raise(srq->context, event);
}

bool end_events(ibv_context* context, const void* object) {
  AsyncEvents& async = context_of(context).async;
  const Nanoseconds limit = now_ns() + 10_s;
  MutexLock lock(async.mutex);
  const auto dropped = std::erase_if(
      async.queue, [object](const ibv_async_event& event) { return event.element.qp == object; });
  for (size_t i = 0; i < dropped; ++i) take_events(context->async_fd);
  while (std::find(async.open.begin(), async.open.end(), object) != async.open.end()) {
    if (async.acknowledged.wait_until(async.mutex, limit)) continue;
    log(LogLevel::error,
        "software HCA: an asynchronous event of a queue was taken and not acknowledged "
        "(ibv_ack_async_event); the queue is not destroyed");
    return false;
  }
  return true;
}

int take_async_event(ibv_context* context, ibv_async_event* out) {
  AsyncEvents& async = context_of(context).async;
  while (true) {
    {
      MutexLock lock(async.mutex);
      if (!async.queue.empty()) {
        take_events(context->async_fd);  // counts at least one, so that it does not block
        *out = async.queue.front();
        async.queue.pop_front();
        if (context_of_event(*out) != nullptr) async.open.push_back(out->element.qp);
        return 0;
      }
    }
    const int flags = ::fcntl(context->async_fd, F_GETFL);
    if (flags < 0 || (flags & O_NONBLOCK) != 0) {
      if (flags >= 0) errno = EAGAIN;
      return -1;
    }
    pollfd wait{context->async_fd, POLLIN, 0};
    if (::poll(&wait, 1, -1) < 0) return -1;  // EINTR
  }
}

void acknowledge_async_event(const ibv_async_event& event) {
  ibv_context* context = context_of_event(event);
  if (context == nullptr) return;
  AsyncEvents& async = context_of(context).async;
  MutexLock lock(async.mutex);
  const auto found = std::find(async.open.begin(), async.open.end(), event.element.qp);
  if (found != async.open.end()) async.open.erase(found);
  async.acknowledged.notify_all();
}

}  // namespace noria::soft
