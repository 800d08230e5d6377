#include "verbs/soft/operations.hpp"

#include <errno.h>

#include <algorithm>
#include <cstring>

#include "verbs/soft/shared_receives.hpp"

namespace noria::soft {
namespace {

int do_post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  return post_send(*static_cast<Qp*>(qp), wr, bad);
}
int do_post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  return post_recv(*static_cast<Qp*>(qp), wr, bad);
}
int do_post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  return post_srq_recv(*static_cast<Srq*>(srq), wr, bad);
}
int do_poll_cq(ibv_cq* cq, int room, ibv_wc* out) {
  return poll_cq(*static_cast<Cq*>(cq), room, out);
}
int do_req_notify_cq(ibv_cq* cq, int solicited_only) {
  return arm_cq(*static_cast<Cq*>(cq), solicited_only != 0);
}

// The same where faults are set.
int faulty_post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  if (engine_for(qp->context, "post_send") != nullptr) return do_post_send(qp, wr, bad);
  *bad = wr;
  return errno;
}
int faulty_post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  if (engine_for(qp->context, "post_recv") != nullptr) return do_post_recv(qp, wr, bad);
  *bad = wr;
  return errno;
}
int faulty_req_notify_cq(ibv_cq* cq, int solicited_only) {
  if (engine_for(cq->context, "req_notify_cq") == nullptr) return errno;
  return do_req_notify_cq(cq, solicited_only);
}

int abandoned_post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  engine_of(qp->context);  // says why
  *bad = wr;
  return ENODEV;
}
int abandoned_post_recv(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  engine_of(qp->context);
  *bad = wr;
  return ENODEV;
}
int abandoned_post_srq_recv(ibv_srq* srq, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  engine_of(srq->context);
  *bad = wr;
  return ENODEV;
}
int abandoned_poll_cq(ibv_cq* cq, int, ibv_wc*) {
  engine_of(cq->context);
  return -1;
}
int abandoned_req_notify_cq(ibv_cq* cq, int) {
  engine_of(cq->context);
  return ENODEV;
}

int do_query_port(ibv_context* context, uint8_t port, ibv_port_attr* out, size_t bytes) {
  if (port != 1) return EINVAL;
  const ibv_port_attr attr = port_attributes(context);
  std::memset(out, 0, bytes);
  std::memcpy(out, &attr, std::min(bytes, sizeof attr));
  return 0;
}

int do_query_device_ex(ibv_context* context, const ibv_query_device_ex_input*,
                       ibv_device_attr_ex* out, size_t bytes) {
  ibv_device_attr_ex attr{};
  attr.orig_attr = device_attributes(context);
  attr.device_cap_flags_ex = attr.orig_attr.device_cap_flags;
  attr.phys_port_cnt_ex = 1;
  if (bytes < sizeof attr.orig_attr) return EINVAL;
  std::memset(out, 0, bytes);
  std::memcpy(out, &attr, std::min(bytes, sizeof attr));
  return 0;
}

}  // namespace

void fill_operations(Context& context) {
  context.sz = sizeof(verbs_context);
  context.query_port = &do_query_port;
  context.query_device_ex = &do_query_device_ex;
  // All ones: the mark of a context that lies inside a verbs_context.
  context.context.abi_compat = reinterpret_cast<void*>(UINTPTR_MAX);
  context.context.ops.post_send = &do_post_send;
  context.context.ops.post_recv = &do_post_recv;
  context.context.ops.post_srq_recv = &do_post_srq_recv;
  context.context.ops.poll_cq = &do_poll_cq;
  context.context.ops.req_notify_cq = &do_req_notify_cq;
  if (context.engine->faults() == nullptr) return;
  context.context.ops.post_send = &faulty_post_send;
  context.context.ops.post_recv = &faulty_post_recv;
  context.context.ops.req_notify_cq = &faulty_req_notify_cq;
}

void abandon_operations(Context& context) {
  context.context.ops.post_send = &abandoned_post_send;
  context.context.ops.post_recv = &abandoned_post_recv;
  context.context.ops.post_srq_recv = &abandoned_post_srq_recv;
  context.context.ops.poll_cq = &abandoned_poll_cq;
  context.context.ops.req_notify_cq = &abandoned_req_notify_cq;
}

}  // namespace noria::soft
