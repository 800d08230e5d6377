#include "verbs/soft/set_up_qp.hpp"

#include <errno.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>

#include "base/log.hpp"
#include "base/units.hpp"
#include "verbs/soft/address.hpp"
#include "verbs/soft/async_events.hpp"
#include "verbs/soft/bind_target.hpp"
#include "verbs/soft/device.hpp"
#include "verbs/soft/fence.hpp"
#include "verbs/soft/shared_receives.hpp"

namespace noria::soft {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;  // config words, published by `state`

bool check_init(const ibv_qp_init_attr& init) {
  if (init.qp_type != IBV_QPT_RC) {
    errno = EOPNOTSUPP;
    return false;
  }
  const ibv_qp_cap& cap = init.cap;
  const bool fits = init.send_cq != nullptr && init.recv_cq != nullptr &&
                    cap.max_send_wr <= kMaxQueueDepth && cap.max_recv_wr <= kMaxQueueDepth &&
                    cap.max_send_sge <= kMaxSge && cap.max_recv_sge <= kMaxSge &&
                    cap.max_inline_data <= kMaxInline;
  if (!fits) errno = EINVAL;
  return fits;
}

// With shared receives the queue of its own holds what was handed out: enough for a burst.
void size_for_shared(Qp& qp) {
  constexpr uint32_t kHandedOut = 64;
  const auto& srq = *static_cast<Srq*>(qp.srq);
  qp.cap.max_recv_wr = std::min(srq.max_wr, kHandedOut);
  qp.cap.max_recv_sge = srq.max_sge;
}

bool make_queues(Qp& qp) {
  const uint32_t send_depth = std::bit_ceil(std::max(qp.cap.max_send_wr, 1u));
  constexpr uint32_t kAtomicBody = sizeof(ibv_sge) + sizeof(AtomicOperands);
  const uint32_t body = std::max<uint32_t>(
      {qp.cap.max_send_sge * uint32_t{sizeof(ibv_sge)}, qp.cap.max_inline_data, kAtomicBody});
  qp.send_mask = send_depth - 1;
  qp.send_stride = align_up(uint32_t{sizeof(Wqe)} + body, 64u);
  qp.send_memory.reset(new (std::nothrow) uint8_t[uint64_t{send_depth} * qp.send_stride]());

  const uint32_t depth = std::bit_ceil(std::max(qp.cap.max_recv_wr, 1u));
  const uint32_t stride = align_up(
      uint32_t{sizeof(uint64_t)} + std::max(qp.cap.max_recv_sge, 1u) * uint32_t{sizeof(SharedSge)},
      8u);
  qp.receive_mask = depth - 1;
  qp.receive_ids.reset(new (std::nothrow) uint64_t[depth]());
  qp.receive_bytes = uint64_t{depth} * stride;
  qp.receive_carved = qp.engine.carve(qp.receive_bytes);
  if (qp.send_memory == nullptr || qp.receive_ids == nullptr ||
      qp.receive_carved == Segment::kNoRoom)
    return false;
  qp.shared.rq_offset.store(qp.receive_carved, kRelaxed);
  qp.shared.rq_depth.store(depth, kRelaxed);
  qp.shared.rq_stride.store(stride, kRelaxed);
  qp.shared.rq_room.store(0, kRelaxed);
  return true;
}

void attach(Qp& qp) {
  {
    SpinGuard guard(qp.sends_to().list);
    qp.sends_to().senders.push_back(&qp);
  }
  {
    SpinGuard guard(qp.receives_to().list);
    qp.receives_to().receivers.push_back(&qp);
  }
  if (qp.srq == nullptr) return;
  auto& srq = *static_cast<Srq*>(qp.srq);
  MutexLock users(srq.users);
  srq.qps.push_back(&qp);
}

void detach(Qp& qp) {
  if (qp.srq != nullptr) {
    auto& srq = *static_cast<Srq*>(qp.srq);
    MutexLock users(srq.users);
    std::erase(srq.qps, &qp);
  }
  {
    SpinGuard guard(qp.sends_to().list);
    std::erase(qp.sends_to().senders, &qp);
  }
  SpinGuard guard(qp.receives_to().list);
  std::erase(qp.receives_to().receivers, &qp);
}

void publish_state(Qp& qp, uint32_t state) {
  const Faults* faults = qp.engine.faults();
  const bool is_down = faults != nullptr && faults->is_down(device_of(qp.pd_number));
  // seq_cst: a state that refuses is visible before marks are read; pairs with Mark().
  qp.shared.state.store(make_state(qp.generation, state) | (is_down ? kPortDownBit : 0),
                        std::memory_order_seq_cst);
  qp.engine.tell_over_tcp(qp.index);
}

// Publishes what initiators check before they touch us.
void publish(Qp& qp, uint32_t state) {
  qp.shared.remote_qpn.store(qp.attr.dest_qp_num, kRelaxed);
  qp.shared.pd.store(qp.pd_number, kRelaxed);
  qp.shared.access.store(qp.attr.qp_access_flags, kRelaxed);
  qp.shared.max_reads.store(qp.attr.max_dest_rd_atomic, kRelaxed);
  qp.shared.path_mtu.store(qp.attr.path_mtu, kRelaxed);
  qp.shared.rnr_timer.store(qp.attr.min_rnr_timer, kRelaxed);
  qp.shared.rq_psn.store(qp.attr.rq_psn, kRelaxed);
  qp.shared.recv_cq.store(qp.receives_to().index, kRelaxed);
  qp.shared.has_shared_receives.store(qp.srq != nullptr ? 1 : 0, kRelaxed);
  publish_state(qp, state);
}

// A new generation without connection and without requests. EBUSY if a peer holds us for too long.
int reset(Qp& qp) {
  {
    SpinGuard list(qp.receives_to().list);
    SpinGuard exec(qp.exec);
    ++qp.generation;
    // release: pairs with the acquire in post_send().
    qp.current.store(IBV_QPS_RESET, std::memory_order_release);
    qp.attr.dest_qp_num = 0;
    qp.peer_ece = 0;
    publish(qp, IBV_QPS_RESET);
  }
  if (!fence_qp(qp.engine, qp.qp_num)) return EBUSY;
  {
    SpinGuard list(qp.receives_to().list);
    take_back(qp);
    SpinGuard receive(qp.receive);
    unbind_source(qp);
    qp.flush_waits.store(false, std::memory_order_relaxed);  // the service thread only looks twice
    qp.receive_head.store(qp.receive_tail, std::memory_order_release);
    qp.shared.rq_base.store(qp.receive_tail, kRelaxed);
    qp.shared.supply_seen.store(qp.receive_tail, kRelaxed);
    qp.has_told_last = false;
    qp.shared.rq_head.store(qp.receive_tail, std::memory_order_release);  // with is_drained()
  }
  {
    SpinGuard post(qp.post);
    SpinGuard exec(qp.exec);
    const uint64_t tail = qp.send_tail.load(kRelaxed);
    qp.send_head.store(tail, std::memory_order_release);
    qp.send_released.store(tail, std::memory_order_release);
    qp.executed = tail;
    qp.moved = 0;
    qp.held.all.clear();
    qp.wait = Wait::none;
    qp.pace.next_request();
    forget_questions(qp);
    unbind_target(qp);
  }
  purge(qp.sends_to(), qp);
  return 0;
}

bool is_valid(const Qp& qp, const ibv_qp_attr& attr, int mask) {
  const auto has = [mask](int bit) { return (mask & bit) != 0; };
  if (has(IBV_QP_PORT) && attr.port_num != 1) return false;
  if (has(IBV_QP_PKEY_INDEX) && attr.pkey_index != 0) return false;
  if (has(IBV_QP_PATH_MTU) && (attr.path_mtu < IBV_MTU_256 || attr.path_mtu > IBV_MTU_4096))
    return false;
  if (has(IBV_QP_TIMEOUT) && attr.timeout > 31) return false;
  if (has(IBV_QP_RETRY_CNT) && attr.retry_cnt > 7) return false;
  if (has(IBV_QP_RNR_RETRY) && attr.rnr_retry > 7) return false;
  if (has(IBV_QP_MIN_RNR_TIMER) && attr.min_rnr_timer > 31) return false;
  if (has(IBV_QP_MAX_QP_RD_ATOMIC) && attr.max_rd_atomic > 16) return false;
  if (has(IBV_QP_MAX_DEST_RD_ATOMIC) && attr.max_dest_rd_atomic > 16) return false;
  return !has(IBV_QP_AV) || (attr.ah_attr.port_num == 1 &&
                             is_path(attr.ah_attr, qp.engine.address(device_of(qp.pd_number)),
                                     qp.engine.may_leave_host()));
}

void take_attributes(Qp& qp, const ibv_qp_attr& from, int mask) {
  ibv_qp_attr& to = qp.attr;
  const auto has = [mask](int bit) { return (mask & bit) != 0; };
  if (has(IBV_QP_PKEY_INDEX)) to.pkey_index = from.pkey_index;
  if (has(IBV_QP_PORT)) to.port_num = from.port_num;
  if (has(IBV_QP_ACCESS_FLAGS)) to.qp_access_flags = from.qp_access_flags;
  if (has(IBV_QP_AV)) to.ah_attr = from.ah_attr;
  if (has(IBV_QP_PATH_MTU)) to.path_mtu = from.path_mtu;
  if (has(IBV_QP_DEST_QPN)) to.dest_qp_num = from.dest_qp_num & 0xffffff;
  if (has(IBV_QP_RQ_PSN)) to.rq_psn = from.rq_psn & 0xffffff;
  if (has(IBV_QP_SQ_PSN)) to.sq_psn = from.sq_psn & 0xffffff;
  if (has(IBV_QP_MAX_DEST_RD_ATOMIC)) to.max_dest_rd_atomic = from.max_dest_rd_atomic;
  if (has(IBV_QP_MAX_QP_RD_ATOMIC)) to.max_rd_atomic = from.max_rd_atomic;
  if (has(IBV_QP_MIN_RNR_TIMER)) to.min_rnr_timer = from.min_rnr_timer;
  if (has(IBV_QP_TIMEOUT)) to.timeout = from.timeout;
  if (has(IBV_QP_RETRY_CNT)) to.retry_cnt = from.retry_cnt;
  if (has(IBV_QP_RNR_RETRY)) to.rnr_retry = from.rnr_retry;
}

// By shared memory or over TCP. 0, or why the peer could not reach us, an errno value.
int choose_way(Qp& qp, const ibv_qp_attr& attr) {
  const uint32_t device = device_of(qp.pd_number);
  const uint32_t qpn = attr.dest_qp_num & 0xffffff;
  const bool over_tcp = qp.engine.goes_over_tcp(attr.ah_attr, qpn, device);
  {
    SpinGuard receive(qp.receive);  // what is posted later notes itself, what was before is told
    qp.goes_over_tcp.store(over_tcp, kRelaxed);  // published by the state
  }
  return over_tcp ? qp.engine.open_tcp(attr.ah_attr, qpn, device) : 0;
}

// To INIT, RTR or RTS. False if the peer broke the connection meanwhile.
bool go_live(Qp& qp, const ibv_qp_attr& attr, int mask, ibv_qp_state from, ibv_qp_state to) {
  // Both roles read the attributes: the receiver under the one lock, the initiator under the other.
  SpinGuard list(qp.receives_to().list);
  SpinGuard exec(qp.exec);
  take_attributes(qp, attr, mask);
  publish(qp, static_cast<uint32_t>(to));
  auto expected = static_cast<uint32_t>(from);
  // release: publishes the attributes; pairs with post_send() and harvest().
  if (qp.current.compare_exchange_strong(expected, static_cast<uint32_t>(to),
                                         std::memory_order_acq_rel))
    return true;
  publish(qp, IBV_QPS_ERR);
  return false;
}

}  // namespace

namespace {

struct Transition {
  ibv_qp_state from, to;
  int required, optional;
};

// The states of a reliable connection, and what each step between them needs and takes: the table
// of the specification, without alternate paths and the drained state, which this device lacks.
constexpr int kInit = IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
constexpr int kLive = IBV_QP_CUR_STATE | IBV_QP_ACCESS_FLAGS | IBV_QP_MIN_RNR_TIMER;
constexpr Transition kTransitions[] = {
    {IBV_QPS_RESET, IBV_QPS_RESET, IBV_QP_STATE, 0},
    {IBV_QPS_RESET, IBV_QPS_INIT, IBV_QP_STATE | kInit, 0},
    {IBV_QPS_INIT, IBV_QPS_RESET, IBV_QP_STATE, 0},
    {IBV_QPS_INIT, IBV_QPS_ERR, IBV_QP_STATE, 0},
    {IBV_QPS_INIT, IBV_QPS_INIT, 0, IBV_QP_STATE | kInit},
    {IBV_QPS_INIT, IBV_QPS_RTR,
     IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
         IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER,
     IBV_QP_ACCESS_FLAGS | IBV_QP_PKEY_INDEX},
    {IBV_QPS_RTR, IBV_QPS_RESET, IBV_QP_STATE, 0},
    {IBV_QPS_RTR, IBV_QPS_ERR, IBV_QP_STATE, 0},
    {IBV_QPS_RTR, IBV_QPS_RTS,
     IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
         IBV_QP_MAX_QP_RD_ATOMIC,
     kLive},
    {IBV_QPS_RTS, IBV_QPS_RESET, IBV_QP_STATE, 0},
    {IBV_QPS_RTS, IBV_QPS_ERR, IBV_QP_STATE, 0},
    {IBV_QPS_RTS, IBV_QPS_RTS, 0, IBV_QP_STATE | kLive},
    {IBV_QPS_ERR, IBV_QPS_RESET, IBV_QP_STATE, 0},
    {IBV_QPS_ERR, IBV_QPS_ERR, IBV_QP_STATE, 0},
};

bool is_allowed(ibv_qp_state from, ibv_qp_state to, int mask) {
  const auto* found =
      std::find_if(std::begin(kTransitions), std::end(kTransitions),
                   [&](const Transition& each) { return each.from == from && each.to == to; });
  return found != std::end(kTransitions) && (mask & found->required) == found->required &&
         (mask & ~(found->required | found->optional)) == 0;
}

}  // namespace

Qp* create_qp(Engine& engine, ibv_pd* pd, uint32_t pd_number, ibv_qp_init_attr* init) {
  if (!check_init(*init)) return nullptr;
  Qp* qp = engine.add_qp(pd, pd_number, *init);
  if (qp == nullptr) {
    errno = ENOMEM;
    return nullptr;
  }
  if (engine.faults() != nullptr) qp->faults = engine.faults()->for_next_qp(device_of(pd_number));
  if (qp->srq != nullptr) size_for_shared(*qp);
  if (!make_queues(*qp)) {
    engine.remove_qp(qp);
    errno = ENOMEM;
    return nullptr;
  }
  // Numbers go on where the last queue pair of this index stopped, so that what peers still have
  // of it cannot be taken for ours.
  qp->receive_tail = qp->shared.rq_tail.load(kRelaxed);
  qp->generation = generation_of(qp->shared.state.load(kRelaxed));
  attach(*qp);
  reset(*qp);
  if (qp->srq != nullptr) qp->cap.max_recv_wr = qp->cap.max_recv_sge = 0;  // it has none of its own
  init->cap = qp->cap;
  return qp;
}

int modify_qp(Qp& qp, const ibv_qp_attr& attr, int mask) {
  const auto from = static_cast<ibv_qp_state>(qp.current.load(std::memory_order_acquire));
  const ibv_qp_state to = (mask & IBV_QP_STATE) != 0 ? attr.qp_state : from;
  if (!is_allowed(from, to, mask) || !is_valid(qp, attr, mask) ||
      ((mask & IBV_QP_CUR_STATE) != 0 && attr.cur_qp_state != from))
    return EINVAL;

  int failure = 0;
  if (to == IBV_QPS_RESET) {
    failure = reset(qp);
  } else if (to == IBV_QPS_ERR) {
    enter_error(qp);
    advance(qp, kExecuteBudget);
    { SpinGuard under_way(qp.exec); }  // what we read from the peer lands no more either
    failure = fence_qp(qp.engine, qp.qp_num) ? 0 : EBUSY;
    SpinGuard list(qp.receives_to().list);  // what we place ourselves has ended
    end_shared(qp);
  } else {
    const bool connects = to == IBV_QPS_RTR && from != IBV_QPS_RTR;
    if (connects)
      if (const int unreachable = choose_way(qp, attr); unreachable != 0) return unreachable;
    if (!go_live(qp, attr, mask, from, to)) return EINVAL;
    // The link takes a moment: begin now. An absent peer is no error before the first request.
    if (connects && !qp.goes_over_tcp.load(kRelaxed))
      (void)qp.engine.neighbours().want(slot_of(qp.attr.dest_qp_num));
  }
  if (failure == 0) qp.state = to;
  return failure;
}

int destroy_qp(Qp& qp) {
  if (const int failure = reset(qp); failure != 0) return failure;
  if (!end_events(qp.context, &qp)) return EBUSY;
  detach(qp);
  qp.engine.release(qp.receive_carved, qp.receive_bytes);
  qp.engine.remove_qp(&qp);
  return 0;
}

void show_port_state(Qp& qp) {
  SpinGuard list(qp.receives_to().list);
  SpinGuard exec(qp.exec);
  const uint32_t state = qp.current.load(std::memory_order_acquire);  // with enter_error()
  publish_state(qp, state);
  // An error that came meanwhile stands.
  if (qp.current.load(std::memory_order_acquire) != state) publish_state(qp, IBV_QPS_ERR);
}

namespace {

// Of those whom the options tell something: a number that is given to nobody (IEEE, administered
// locally).
constexpr uint32_t kEceVendor = 0x6e6f72;

uint32_t own_ece(const Qp& qp) { return context_of(qp.context).description->ece; }

}  // namespace

int set_ece(Qp& qp, const ibv_ece& peer) {
  if (own_ece(qp) == 0) return EOPNOTSUPP;
  const bool is_ours = peer.vendor_id == kEceVendor && peer.comp_mask == 0;
  if (!is_ours || qp.current.load(std::memory_order_acquire) != IBV_QPS_INIT) return EINVAL;
  qp.peer_ece = peer.options;
  return 0;
}

int query_ece(const Qp& qp, ibv_ece* out) {
  if (own_ece(qp) == 0) return EOPNOTSUPP;
  const uint32_t state = qp.current.load(std::memory_order_acquire);
  const bool is_settled = state == IBV_QPS_RTR || state == IBV_QPS_RTS;
  *out = {.vendor_id = kEceVendor, .options = is_settled ? own_ece(qp) & qp.peer_ece : own_ece(qp)};
  return 0;
}

void query_qp(const Qp& qp, ibv_qp_attr* attr, ibv_qp_init_attr* init) {
  *attr = qp.attr;
  attr->qp_state = static_cast<ibv_qp_state>(qp.current.load(std::memory_order_acquire));
  attr->cur_qp_state = attr->qp_state;
  attr->cap = qp.cap;
  *init = ibv_qp_init_attr{};
  init->qp_context = qp.qp_context;
  init->send_cq = qp.send_cq;
  init->recv_cq = qp.recv_cq;
  init->srq = qp.srq;
  init->cap = qp.cap;
  init->qp_type = qp.qp_type;
  init->sq_sig_all = qp.signal_all ? 1 : 0;
}

}  // namespace noria::soft
