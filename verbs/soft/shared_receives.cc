#include "verbs/soft/shared_receives.hpp"

#include <errno.h>

#include <algorithm>

#include "verbs/soft/async_events.hpp"
#include "verbs/soft/completion_queue.hpp"
#include "verbs/soft/engine.hpp"
#include "verbs/soft/queue_pair.hpp"

namespace noria::soft {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;  // published by rq_tail

// The head starts far from zero, because what is taken back goes in front of it.
constexpr uint64_t kFirst = 1ull << 32;

// Moves the oldest receive of the shared queue to the end of the queue pair's own.
void hand_out(Srq& srq, Qp& qp, uint64_t number) NORIA_REQUIRES(srq.lock) {
  const uint64_t slot = srq.head++ % srq.max_wr;
  ++srq.given;
  const Srq::Receive& from = srq.receives[slot];
  SharedRecv& to = qp.shared_recv(number);
  for (uint32_t i = 0; i < from.sge_count; ++i) {
    const ibv_sge& sge = srq.sges[slot * srq.max_sge + i];
    to.sge[i].address.store(sge.addr, kRelaxed);
    to.sge[i].length.store(sge.length, kRelaxed);
    to.sge[i].key.store(sge.lkey, kRelaxed);
  }
  to.sge_count.store(from.sge_count, kRelaxed);
  qp.receive_ids[number & qp.receive_mask] = from.id;
}

// The other way round, for the newest of the queue pair.
void hand_back(Srq& srq, const Qp& qp, uint64_t number) NORIA_REQUIRES(srq.lock) {
  const uint64_t slot = --srq.head % srq.max_wr;
  --srq.given;
  Srq::Receive& to = srq.receives[slot];
  const SharedRecv& from = qp.shared_recv(number);
  to.sge_count = static_cast<uint32_t>(from.sge_count.load(kRelaxed));
  to.id = qp.receive_ids[number & qp.receive_mask];
  for (uint32_t i = 0; i < to.sge_count; ++i)
    srq.sges[slot * srq.max_sge + i] = {from.sge[i].address.load(kRelaxed),
                                        from.sge[i].length.load(kRelaxed),
                                        from.sge[i].key.load(kRelaxed)};
}

[[gnu::noinline]] void supply_waiting(Srq& srq) {
  srq.is_short.store(false, std::memory_order_release);
  MutexLock users(srq.users);
  for (Qp* qp : srq.qps) {
    SpinGuard list(qp->receives_to().list);
    supply(*qp);
  }
}

Srq* shared_of(const Qp& qp) { return static_cast<Srq*>(qp.srq); }

}  // namespace

Srq::Srq(ibv_pd* pd_in, const ibv_srq_init_attr& init)
    : ibv_srq{},
      max_wr(std::max(init.attr.max_wr, 1u)),
      max_sge(std::max(init.attr.max_sge, 1u)),
      receives(std::make_unique<Receive[]>(max_wr)),
      sges(std::make_unique<ibv_sge[]>(uint64_t{max_wr} * max_sge)),
      head(kFirst * max_wr),
      tail(kFirst * max_wr) {
  context = pd_in->context;
  pd = pd_in;
  srq_context = init.srq_context;
}

NORIA_HOT int post_srq_recv(Srq& srq, ibv_recv_wr* first, ibv_recv_wr** bad) {
  int refused = 0;
  {
    SpinGuard guard(srq.lock);
    for (ibv_recv_wr* wr = first; wr != nullptr; wr = wr->next) {
      if (wr->num_sge < 0 || static_cast<uint32_t>(wr->num_sge) > srq.max_sge)
        refused = EINVAL;
      else if (srq.tail - srq.head + srq.given >= srq.max_wr)
        refused = ENOMEM;
      if (refused != 0) {
        *bad = wr;
        break;
      }
      const uint64_t slot = srq.tail++ % srq.max_wr;
      srq.receives[slot] = {wr->wr_id, static_cast<uint32_t>(wr->num_sge)};
      std::copy_n(wr->sg_list, wr->num_sge, &srq.sges[slot * srq.max_sge]);
    }
  }
  // acquire: pairs with supply(), which sets it under the lock that we held.
  if (srq.is_short.load(std::memory_order_acquire)) supply_waiting(srq);
  return refused;
}

int modify_srq(Srq& srq, const ibv_srq_attr& attr, int mask) {
  if ((mask & ~IBV_SRQ_LIMIT) != 0) return EINVAL;  // its size stays as it is
  SpinGuard guard(srq.lock);
  if ((mask & IBV_SRQ_LIMIT) == 0) return 0;
  if (attr.srq_limit > srq.max_wr) return EINVAL;
  srq.limit = attr.srq_limit;
  return 0;
}

void query_srq(Srq& srq, ibv_srq_attr* attr) {
  SpinGuard guard(srq.lock);
  *attr = {.max_wr = srq.max_wr, .max_sge = srq.max_sge, .srq_limit = srq.limit};
}

void supply(Qp& qp) {
  Srq* const srq = shared_of(qp);
  if (srq == nullptr || !is_source_bound(qp)) return;
  // acquire: pairs with modify_qp(), and with the initiator's ask_for_receives().
  const uint32_t state = qp.current.load(std::memory_order_acquire);
  const uint64_t wanted = qp.source->receives_wanted.load(std::memory_order_acquire);
  const bool has_seen = qp.shared.supply_seen.load(kRelaxed) == wanted;
  if ((state != IBV_QPS_RTR && state != IBV_QPS_RTS) || (has_seen && wanted <= qp.receive_tail))
    return;
  bool is_low = false;
  {
    SpinGuard receive(qp.receive);
    const uint64_t room = qp.receive_head.load(kRelaxed) + qp.receive_mask + 1;
    SpinGuard guard(srq->lock);
    const uint64_t before = qp.receive_tail;
    while (qp.receive_tail < std::min(wanted, room)) {
      if (srq->head == srq->tail) {
        srq->is_short.store(true, std::memory_order_release);
        break;
      }
      hand_out(*srq, qp, qp.receive_tail++);
    }
    if (has_seen && qp.receive_tail == before) return;
    is_low = srq->tail - srq->head < srq->limit;
    if (is_low) srq->limit = 0;  // one event for each time that it was set
    // release: publishes the receives; pairs with take_step().
    qp.shared.rq_tail.store(qp.receive_tail, std::memory_order_release);
  }
  // release: rq_tail comes before; pairs with ask_for_receives().
  qp.shared.supply_seen.store(wanted, std::memory_order_release);
  if (qp.goes_over_tcp.load(kRelaxed)) qp.engine.note_for_peers(qp.index);
  qp.source_peer->wake();
  if (is_low) raise_event(srq, IBV_EVENT_SRQ_LIMIT_REACHED);
}

void take_back(Qp& qp) {
  Srq* const srq = shared_of(qp);
  if (srq == nullptr) return;
  SpinGuard receive(qp.receive);
  const uint64_t head = qp.receive_head.load(kRelaxed);
  SpinGuard guard(srq->lock);
  for (uint64_t i = qp.receive_tail; i-- > head;) hand_back(*srq, qp, i);
  // release: pairs with the readers of the head; what was handed back is no receive of ours.
  qp.receive_head.store(qp.receive_tail, std::memory_order_release);
}

void use_up(Qp& qp, uint64_t count) {
  Srq* const srq = shared_of(qp);
  if (srq == nullptr || count == 0) return;
  SpinGuard guard(srq->lock);
  srq->given -= static_cast<uint32_t>(count);
}

}  // namespace noria::soft
