#include "verbs/async_event.hpp"

namespace noria::verbs {
namespace {

AsyncEvent of(const ibv_async_event& event) {
  AsyncEvent taken{.type = event.event_type};
  switch (event.event_type) {
    case IBV_EVENT_CQ_ERR: taken.object = event.element.cq; break;
    case IBV_EVENT_QP_FATAL:
    case IBV_EVENT_QP_REQ_ERR:
    case IBV_EVENT_QP_ACCESS_ERR: taken.object = event.element.qp; break;
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_PORT_ERR:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_SM_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE: taken.port = static_cast<uint8_t>(event.element.port_num); break;
    default: break;
  }
  return taken;
}

}  // namespace

EventCost cost_of(ibv_event_type type) {
  switch (type) {
    case IBV_EVENT_DEVICE_FATAL: return EventCost::device;
    case IBV_EVENT_CQ_ERR:
    case IBV_EVENT_QP_FATAL: return EventCost::queue;
    case IBV_EVENT_PORT_ACTIVE:
    case IBV_EVENT_LID_CHANGE:
    case IBV_EVENT_PKEY_CHANGE:
    case IBV_EVENT_CLIENT_REREGISTER:
    case IBV_EVENT_GID_CHANGE: return EventCost::path;
    case IBV_EVENT_COMM_EST:
    case IBV_EVENT_SQ_DRAINED:
    case IBV_EVENT_QP_LAST_WQE_REACHED:
    case IBV_EVENT_SRQ_LIMIT_REACHED: return EventCost::silence;
    default: return EventCost::nothing;
  }
}

std::optional<AsyncEvent> take_event(const Api& api, ibv_context* context) {
  ibv_async_event event{};
  const Status taken = api.probe<&Symbols::get_async_event>(context, context, &event);
  if (taken.is_ok()) {
    const AsyncEvent plain = of(event);
    api.probe<&Symbols::ack_async_event>(context, &event);
    return plain;
  }
  if (taken.code() == Code::device_lost) return AsyncEvent{.type = IBV_EVENT_DEVICE_FATAL};
  return std::nullopt;
}

}  // namespace noria::verbs
