// The receiver at work: notices of the peer become completions.
#include <algorithm>
#include <cstring>
#include <utility>

#include "verbs/soft/async_events.hpp"
#include "verbs/soft/completion_queue.hpp"
#include "verbs/soft/device_time.hpp"
#include "verbs/soft/engine.hpp"
#include "verbs/soft/own_receive.hpp"
#include "verbs/soft/queue_pair.hpp"
#include "verbs/soft/shared_receives.hpp"

namespace noria::soft {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// Whether the owner of `source` has ever written to us.
bool is_ours(const Qp& qp, const SharedQp& source) {
  return source.ring_to.load(std::memory_order_acquire) == qp.ring_name();  // with bind_target()
}

// Whose notices we read; false while the peer has not shown up.
bool find_source(Qp& qp) {
  // A process that died before it wrote to us has no more to say: its slot may have a new owner.
  if (qp.source != nullptr && !qp.source_peer->is_alive() && !is_ours(qp, *qp.source))
    unbind_source(qp);
  if (qp.source != nullptr) return true;
  // relaxed: set before the states that follow. Who comes over TCP says so itself (tcp_target.hpp).
  if (qp.goes_over_tcp.load(kRelaxed)) return false;
  const uint32_t state = qp.current.load(std::memory_order_acquire);  // with modify_qp()
  if (state != IBV_QPS_RTR && state != IBV_QPS_RTS && state != IBV_QPS_ERR) return false;
  const uint32_t index = index_of(qp.attr.dest_qp_num);
  const uint32_t slot = slot_of(qp.attr.dest_qp_num);
  Neighbours& neighbours = qp.engine.neighbours();
  if (index >= kMaxQps || !neighbours.has_latest(slot)) return false;
  Peer* peer = neighbours.use_sender(
      slot, [&](const Peer& each) { return is_ours(qp, each.shared().qps[index]); });
  if (peer == nullptr) return false;
  qp.source_peer = peer;
  qp.source = &peer->shared().qps[index];
  return true;
}

// Of a message that rode in the ring; null if it is longer than there is room.
const uint8_t* payload_of(const Notice& notice, uint32_t bytes, const uint8_t* in_place) {
  if ((notice.flags & kIsInNotice) != 0) return bytes <= kInNotice ? notice.payload : nullptr;
  return bytes <= kInPlace ? in_place : nullptr;
}

NORIA_HOT void complete(Qp& qp, uint64_t number, const Notice& notice, const uint8_t* in_place,
                        ibv_wc* wc) {
  wc->wr_id = qp.receive_ids[number & qp.receive_mask];
  wc->status = static_cast<ibv_wc_status>(notice.status);
  wc->opcode = (notice.flags & kIsWrite) != 0 ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV;
  wc->vendor_err = 0;
  const uint32_t bytes = notice.bytes;
  wc->byte_len = bytes;
  wc->imm_data = notice.imm;
  wc->qp_num = qp.qp_num;
  wc->src_qp = qp.attr.dest_qp_num;
  wc->wc_flags = (notice.flags & kHasImm) != 0 ? unsigned{IBV_WC_WITH_IMM} : 0u;
  wc->pkey_index = 0;
  wc->slid = 0;
  wc->sl = 0;
  wc->dlid_path_bits = 0;
  if ((notice.flags & (kIsInNotice | kIsInPlace)) != 0) {
    qp.taken.count(false, bytes);
    const uint8_t* payload = payload_of(notice, bytes, in_place);
    if (payload == nullptr || !place_in_receive(qp, number, 0, payload, bytes))
      wc->status = IBV_WC_LOC_PROT_ERR;
  }
  if (wc->status != IBV_WC_SUCCESS) enter_error(qp);
}

// The peer broke a rule of the connection, and knows; here nothing else would tell.
[[gnu::noinline]] void on_fault(Qp& qp) {
  if (enter_error(qp)) raise_event(&qp, IBV_EVENT_QP_ACCESS_ERR);
}

void flush_one(const Qp& qp, uint64_t number, ibv_wc* wc) {
  *wc = ibv_wc{};
  wc->wr_id = qp.receive_ids[number & qp.receive_mask];
  wc->status = IBV_WC_WR_FLUSH_ERR;
  wc->opcode = IBV_WC_RECV;
  wc->qp_num = qp.qp_num;
}

// In the error state, and nothing more can arrive: what is still posted comes back.
int flush(Qp& qp, uint64_t head, ibv_wc* out, int room) {
  if (qp.srq != nullptr) {
    end_shared(qp);
    return 0;
  }
  if (!may_flush(qp)) {
    // release: pairs with the service thread, which wakes a sleeper when the peer has let go.
    qp.flush_waits.store(true, std::memory_order_release);
    qp.engine.request_service(device_now() + Engine::kTick);
    return 0;
  }
  int count = 0;
  SpinGuard guard(qp.receive);
  for (; count < room && head < qp.receive_tail; ++head, ++count) flush_one(qp, head, out + count);
  qp.receive_head.store(head, std::memory_order_release);  // pairs with post_recv()
  return count;
}

// Where the peer writes to us.
struct Inbox {
  const Notice* notices;
  const uint8_t* in_place;
  uint64_t depth;

  // acquire: pairs with announce().
  bool has(uint64_t number) const {
    return notices[number & (depth - 1)].number.load(std::memory_order_acquire) == number + 1;
  }
};

// False where the peer, who wrote that word, names no place inside its segment.
bool find_inbox(const Qp& qp, Inbox* inbox) {
  const uint64_t ring = qp.source->ring.load(kRelaxed);  // published by ring_to
  const uint64_t depth = ring_depth(ring), offset = ring_offset(ring);
  if (depth > kMaxQueueDepth || offset > kRingArenaBytes - ring_bytes(depth)) return false;
  const uint8_t* base = qp.source_peer->shared().rings + offset;
  *inbox = {reinterpret_cast<const Notice*>(base), base + depth * sizeof(Notice), depth};
  return true;
}

// Completions for the notices from `head` on.
NORIA_HOT int collect(Qp& qp, uint64_t head, ibv_wc* out, int room) {
  Inbox inbox;
  // The ring was for us before we looked and is so after: what we saw is for us, and stays until we
  // say that we have read it.
  if (!find_inbox(qp, &inbox) || !inbox.has(head) || !is_ours(qp, *qp.source)) return 0;
  // No further than the receives that we posted.
  const uint64_t posted = qp.shared.rq_tail.load(std::memory_order_acquire);  // with post_recv()
  const auto entries = static_cast<uint64_t>(qp.receives_to().cqe);
  if (entries < inbox.depth && head + entries < posted && inbox.has(head + entries))
    on_overrun(qp.receives_to());
  int count = 0;
  // After a flush the head is past the ring: what was flushed never came through it.
  for (; count < room && head < posted && inbox.has(head); ++head, ++count) {
    const uint64_t slot = head & (inbox.depth - 1);
    complete(qp, head, inbox.notices[slot], inbox.in_place + slot * kInPlace, out + count);
  }
  if (qp.srq != nullptr) use_up(qp, static_cast<uint64_t>(count));
  qp.receive_head.store(head, std::memory_order_release);    // pairs with post_recv()
  qp.shared.rq_head.store(head, std::memory_order_release);  // pairs with is_drained()
  if (qp.goes_over_tcp.load(kRelaxed)) qp.engine.note_for_peers(qp.index);
  return count;
}

// Whether the peer says that it broke our rules. Acquire: what it announced before comes first;
// pairs with fault_target().
bool has_fault(const Qp& qp) {
  return qp.source->fault_to.load(std::memory_order_acquire) == qp.ring_name();
}

}  // namespace

NORIA_HOT int harvest(Qp& qp, ibv_wc* out, int room) {
  const bool has_source = find_source(qp);
  uint64_t head = qp.receive_head.load(kRelaxed);  // ours alone under the list lock
  int count = 0;
  if (has_source) {
    // relaxed: a hint. They are asked where the kernel forbids attach.
    if (qp.source->hand_asked.load(kRelaxed) != qp.answerer.seen) answer_questions(qp);
    if (qp.srq != nullptr) supply(qp);
    const bool is_faulty = has_fault(qp);
    if (is_ours(qp, *qp.source)) count = collect(qp, head, out, room);
    if (is_faulty) on_fault(qp);
    head += static_cast<uint64_t>(count);
  }
  // acquire: pairs with enter_error().
  if (qp.current.load(std::memory_order_acquire) == IBV_QPS_ERR && count < room)
    count += flush(qp, head, out + count, room - count);
  return count;
}

uint64_t unread(Qp& qp) {
  if (!is_source_bound(qp)) return 0;
  const uint64_t tail = qp.source->tail.load(std::memory_order_acquire);      // with announce()
  const uint64_t posted = qp.shared.rq_tail.load(std::memory_order_acquire);  // with post_recv()
  const uint64_t head = qp.receive_head.load(kRelaxed);
  return std::min(tail, posted) - std::min({tail, posted, head});
}

void unbind_source(Qp& qp) {
  if (qp.source_peer != nullptr) qp.engine.done_with(qp.source_peer);
  qp.source_peer = nullptr;
  qp.source = nullptr;
}

bool may_flush(Qp& qp) {
  if (qp.source_peer == nullptr) return true;
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with Mark: it, or our state
  const uint64_t mark = qp.source->mark.load(std::memory_order_acquire);
  const bool is_marked = (mark & kMarkBit) != 0 && mark_qpn(mark) == qp.qp_num;
  if (is_marked && qp.source_peer->is_alive()) return false;
  // What arrived before the error comes first. A notice is visible before the tail that counts it,
  // and a message that went without a mark (send_unmarked()) may have no more than that by now.
  const uint64_t head = qp.receive_head.load(kRelaxed);
  Inbox inbox;
  const bool is_ours = qp.source->ring_to.load(std::memory_order_acquire) == qp.ring_name();
  return !is_ours || (qp.source->tail.load(std::memory_order_acquire) <= head &&
                      !(find_inbox(qp, &inbox) && inbox.has(head)));
}

void end_shared(Qp& qp) {
  // acquire: pairs with enter_error().
  if (qp.srq == nullptr || qp.current.load(std::memory_order_acquire) != IBV_QPS_ERR) return;
  if (!may_flush(qp)) {
    qp.flush_waits.store(true, std::memory_order_release);  // as in flush()
    qp.engine.request_service(device_now() + Engine::kTick);
    return;
  }
  take_back(qp);
  if (!std::exchange(qp.has_told_last, true)) raise_event(&qp, IBV_EVENT_QP_LAST_WQE_REACHED);
}

bool is_source_bound(Qp& qp) {
  return find_source(qp) &&
         qp.source->ring_to.load(std::memory_order_acquire) == qp.ring_name();  // bind_target()
}

void wake_for_lost(Qp& qp) {
  Inbox inbox;
  if (!is_source_bound(qp) || qp.source_peer->is_alive() || !find_inbox(qp, &inbox) ||
      !inbox.has(qp.receive_head.load(kRelaxed)))
    return;
  fire_local(qp.receives_to(), true);  // whether it was a solicited one nobody can tell any more
}

void take_fault(Qp& qp) {
  if (find_source(qp) && has_fault(qp)) on_fault(qp);
}

}  // namespace noria::soft
