#include "verbs/soft/queue_pair.hpp"

#include <errno.h>

#include <algorithm>
#include <cstring>

#include "verbs/soft/completion_queue.hpp"
#include "verbs/soft/device_time.hpp"
#include "verbs/soft/engine.hpp"
#include "verbs/soft/faults.hpp"

namespace noria::soft {

Qp::Qp(Engine& engine_in, SharedQp& shared_in, uint32_t index_in, ibv_pd* pd_in,
       const ibv_qp_init_attr& init)
    : ibv_qp{},
      engine(engine_in),
      shared(shared_in),
      index(index_in),
      signal_all(init.sq_sig_all != 0),
      cap(init.cap) {
  context = pd_in->context;
  pd = pd_in;
  qp_context = init.qp_context;
  send_cq = init.send_cq;
  recv_cq = init.recv_cq;
  srq = init.srq;
  qp_type = init.qp_type;
  qp_num = qpn_of(engine.slot(), index);
  handle = index;
  state = IBV_QPS_RESET;
}

Qp::~Qp() = default;

Cq& Qp::sends_to() const { return *static_cast<Cq*>(send_cq); }
Cq& Qp::receives_to() const { return *static_cast<Cq*>(recv_cq); }

SharedRecv& Qp::shared_recv(uint64_t number) const {
  // relaxed: written once, by ourselves, before the queue was used.
  const uint64_t stride = shared.rq_stride.load(std::memory_order_relaxed);
  return *reinterpret_cast<SharedRecv*>(engine.shared().rings + receive_carved +
                                        (number & receive_mask) * stride);
}

namespace {

bool is_known(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM:
    case IBV_WR_SEND:
    case IBV_WR_SEND_WITH_IMM:
    case IBV_WR_RDMA_READ:
    case IBV_WR_ATOMIC_FETCH_AND_ADD:
    case IBV_WR_ATOMIC_CMP_AND_SWP: return true;
    default: return false;
  }
}

// 0, or why the request is refused.
int check_send(const Qp& qp, const ibv_send_wr& wr, uint64_t bytes) {
  if (!is_known(wr.opcode)) return EOPNOTSUPP;
  if (wr.num_sge < 0 || static_cast<uint32_t>(wr.num_sge) > qp.cap.max_send_sge) return ENOMEM;
  const bool is_atomic = is_atomic_opcode(wr.opcode);
  if (is_atomic && wr.num_sge != 1) return EINVAL;  // eight bytes in two places: nobody does
  if ((wr.send_flags & IBV_SEND_INLINE) == 0) return 0;
  if (wr.opcode == IBV_WR_RDMA_READ || is_atomic) return EINVAL;
  return bytes > qp.cap.max_inline_data ? ENOMEM : 0;
}

NORIA_HOT void write_wqe(Qp& qp, Wqe& wqe, const ibv_send_wr& wr, uint64_t bytes) {
  wqe.wr_id = wr.wr_id;
  wqe.opcode = wr.opcode;
  wqe.flags = wr.send_flags | (qp.signal_all ? unsigned{IBV_SEND_SIGNALED} : 0u);
  wqe.imm = wr.imm_data;
  wqe.remote_address = wr.wr.rdma.remote_addr;
  wqe.rkey = wr.wr.rdma.rkey;
  wqe.bytes = bytes;
  wqe.sge_count = static_cast<uint32_t>(wr.num_sge);
  if (wqe.is_atomic()) {
    wqe.remote_address = wr.wr.atomic.remote_addr;
    wqe.rkey = wr.wr.atomic.rkey;
    wqe.operands() = {wr.wr.atomic.compare_add, wr.wr.atomic.swap};
  }
  if ((wr.send_flags & IBV_SEND_INLINE) == 0) {
    for (uint32_t i = 0; i < wqe.sge_count; ++i) wqe.sges()[i] = wr.sg_list[i];
    return;
  }
  uint8_t* to = wqe.inline_data();
  for (uint32_t i = 0; i < wqe.sge_count; ++i) {
    const ibv_sge& sge = wr.sg_list[i];
    if (sge.length > 0) std::memcpy(to, reinterpret_cast<const void*>(sge.addr), sge.length);
    to += sge.length;
  }
}

}  // namespace

NORIA_HOT int post_send(Qp& qp, ibv_send_wr* first, ibv_send_wr** bad) {
  int refused = 0;
  {
    SpinGuard guard(qp.post);
    // acquire: pairs with modify_qp() and enter_error().
    const uint32_t state = qp.current.load(std::memory_order_acquire);
    if (state != IBV_QPS_RTS && state != IBV_QPS_ERR) {
      *bad = first;
      return EINVAL;
    }
    const Nanoseconds now = qp.engine.is_shaped() ? device_now() : 0;
    uint64_t tail = qp.send_tail.load(std::memory_order_relaxed);  // ours alone under `post`
    for (ibv_send_wr* wr = first; wr != nullptr; wr = wr->next) {
      uint64_t bytes = 0;
      for (int i = 0; i < wr->num_sge; ++i) bytes += wr->sg_list[i].length;
      refused = check_send(qp, *wr, bytes);
      // acquire: the slot's completion was polled; pairs with drain().
      if (refused == 0 &&
          tail - qp.send_released.load(std::memory_order_acquire) >= qp.cap.max_send_wr)
        refused = ENOMEM;
      if (refused != 0) {
        *bad = wr;
        break;
      }
      write_wqe(qp, qp.wqe(tail), *wr, bytes);
      qp.wqe(tail).posted = now;
      ++tail;
    }
    qp.send_tail.store(tail, std::memory_order_release);  // publishes the WQEs to execute()
  }
  // Late placement moves nothing inside the post, but somebody must look if its owner does not.
  if (qp.engine.places_late())
    qp.engine.request_service(next_look(qp, Progress::waits));
  else
    advance(qp, kExecuteBudget);
  return refused;
}

namespace {

// One more than the longest message that the receive can take, up to a small one; 0 if its memory
// is not ours to write to.
NORIA_HOT uint32_t room_of(const Qp& qp, const ibv_recv_wr& wr) {
  uint64_t room = 0;
  for (int i = 0; i < wr.num_sge; ++i) {
    const ibv_sge& sge = wr.sg_list[i];
    if (sge.length > 0 && !find_range(qp.engine.shared(), sge.lkey, qp.pd_number,
                                      IBV_ACCESS_LOCAL_WRITE, sge.addr, sge.length))
      return 0;
    room += sge.length;
  }
  return static_cast<uint32_t>(std::min<uint64_t>(room, kInPlace)) + 1;
}

}  // namespace

NORIA_HOT int post_recv(Qp& qp, ibv_recv_wr* first, ibv_recv_wr** bad) {
  SpinGuard guard(qp.receive);
  const uint32_t state = qp.current.load(std::memory_order_acquire);  // with modify_qp()
  if (state == IBV_QPS_RESET || qp.srq != nullptr) {
    *bad = first;
    return EINVAL;
  }
  constexpr auto kRelaxed = std::memory_order_relaxed;  // published by rq_tail
  int refused = 0;
  for (ibv_recv_wr* wr = first; wr != nullptr; wr = wr->next) {
    const uint64_t head = qp.receive_head.load(std::memory_order_acquire);  // with collect()
    const uint64_t used = qp.receive_tail - head;
    if (wr->num_sge < 0 || static_cast<uint32_t>(wr->num_sge) > qp.cap.max_recv_sge)
      refused = EINVAL;
    else if (used >= qp.cap.max_recv_wr)
      refused = ENOMEM;
    if (refused != 0) {
      *bad = wr;
      break;
    }
    SharedRecv& receive = qp.shared_recv(qp.receive_tail);
    for (int i = 0; i < wr->num_sge; ++i) {
      receive.sge[i].address.store(wr->sg_list[i].addr, kRelaxed);
      receive.sge[i].length.store(wr->sg_list[i].length, kRelaxed);
      receive.sge[i].key.store(wr->sg_list[i].lkey, kRelaxed);
    }
    receive.sge_count.store(static_cast<uint64_t>(wr->num_sge), kRelaxed);
    qp.receive_ids[qp.receive_tail & qp.receive_mask] = wr->wr_id;
    // Written only where it changes: whoever sends has it in its cache.
    const uint32_t room = qp.room.add(qp.receive_tail, head, room_of(qp, *wr));
    if (qp.shared.rq_room.load(kRelaxed) != room) qp.shared.rq_room.store(room, kRelaxed);
    ++qp.receive_tail;
  }
  // release: publishes the WQEs; pairs with the initiator's acquire in take_step().
  qp.shared.rq_tail.store(qp.receive_tail, std::memory_order_release);
  if (state == IBV_QPS_ERR) fire_local(qp.receives_to(), true);
  if (qp.goes_over_tcp.load(kRelaxed))  // set under our lock
    qp.engine.tell_over_tcp(qp.index, device_now() + Engine::kSleeperTick);
  return refused;
}

void doubt_receives(Qp& qp) {
  SpinGuard guard(qp.receive);
  qp.room.doubt(qp.receive_tail);
  // release: pairs with take_step(). What was found good before has arrived before.
  qp.shared.rq_room.store(0, std::memory_order_release);
}

bool enter_error(Qp& qp) {
  // acq_rel: one thread wins; pairs with the acquire in execute() and harvest().
  uint32_t state = qp.current.load(std::memory_order_acquire);
  do {
    if (state == IBV_QPS_ERR || state == IBV_QPS_RESET) return false;
  } while (!qp.current.compare_exchange_weak(state, IBV_QPS_ERR, std::memory_order_acq_rel));
  // seq_cst: ordered before the marks that harvest() and the fence read next.
  qp.shared.state.store(make_state(qp.generation, IBV_QPS_ERR), std::memory_order_seq_cst);
  fire_local(qp.sends_to(), true);
  fire_local(qp.receives_to(), true);
  qp.engine.tell_over_tcp(qp.index);
  return true;
}

}  // namespace noria::soft
