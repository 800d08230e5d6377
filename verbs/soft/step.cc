#include "verbs/soft/step.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "verbs/soft/bind_target.hpp"
#include "verbs/soft/device_copy.hpp"
#include "verbs/soft/device_time.hpp"
#include "verbs/soft/engine.hpp"
#include "verbs/soft/landing.hpp"
#include "verbs/soft/mark.hpp"
#include "verbs/soft/tcp_initiator.hpp"

namespace noria::soft {
namespace {

Notice& next_notice(Qp& qp) { return qp.ring[qp.receives_taken & qp.ring_mask]; }

// The message is there: the receiver may see it.
NORIA_HOT void announce(Qp& qp, const Wqe& wqe, ibv_wc_status status, uint32_t flags) {
  Notice& notice = next_notice(qp);
  if (wqe.has_imm()) flags |= kHasImm;
  if (wqe.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) flags |= kIsWrite;
  notice.bytes = static_cast<uint32_t>(wqe.bytes);
  notice.imm = wqe.imm;
  notice.status = static_cast<uint16_t>(status);
  notice.flags = static_cast<uint16_t>(flags);
  ++qp.receives_taken;
  // Publishes notice and payload, pairs with collect(); seq_cst for wake_target().
  notice.number.exchange(qp.receives_taken, std::memory_order_seq_cst);
  qp.shared.tail.store(qp.receives_taken, std::memory_order_release);  // with may_flush()
  const bool is_solicited = (wqe.flags & IBV_SEND_SOLICITED) != 0 || status != IBV_WC_SUCCESS;
  // Of several messages that were left before anybody is woken: one that is solicited.
  if (qp.wakes != Arm::solicited) qp.wakes = is_solicited ? Arm::solicited : Arm::any;
}

// The request broke a rule of the target: as on hardware, its queue pair goes to error too.
[[gnu::noinline]] Outcome fault_target(Qp& qp, ibv_wc_status status) {
  if (qp.target_peer->connection() != nullptr) {
    fault_over_tcp(qp);
    return fail(status);
  }
  // release: what was announced before is seen before; pairs with has_fault().
  qp.shared.fault_to.store(qp.shared.ring_to.load(std::memory_order_relaxed),  // ours alone
                           std::memory_order_release);
  qp.target_peer->wake();
  return fail(status);
}

[[gnu::noinline]] Outcome on_copy_failure(Qp& qp, CopyResult result) {
  switch (result) {
    case CopyResult::gone: qp.target_peer->mark_dead(); return {Step::moved};
    case CopyResult::refused:
      if (qp.engine.may_ask()) {
        qp.target_peer->lose_attach();
        return {Step::moved};
      }
      // Nothing else is left to try, so that it is worth a wait to tell a death from a refusal.
      if (qp.target_peer->ends_within(200_ms)) {
        qp.target_peer->mark_dead();
        return {Step::moved};
      }
      log(LogLevel::error,
          "qp 0x%x: the kernel forbids cross-memory attach to process %d; allow it, or set "
          "NORIA_SOFT_COPY to auto",
          qp.qp_num, qp.target_peer->identity().pid);
      return fault_target(qp, IBV_WC_REM_OP_ERR);
    case CopyResult::fault:
      log(LogLevel::error, "qp 0x%x: memory registered here or at process %d is not mapped",
          qp.qp_num, qp.target_peer->identity().pid);
      return fault_target(qp, IBV_WC_REM_ACCESS_ERR);
    case CopyResult::done: break;
  }
  return fail(IBV_WC_GENERAL_ERR);
}

// Where the target looks, and for our own port.
void count_traffic(Qp& qp, const Wqe& wqe) {
  constexpr auto kRelaxed = std::memory_order_relaxed;  // counters order nothing
  const uint32_t device = device_of(qp.target->pd.load(kRelaxed)),
                 slot = slot_of(qp.attr.dest_qp_num);
  Traffic& theirs = qp.engine.shared().header.traffic[slot][device];
  const bool is_read = wqe.is_answered();
  qp.moved_in_all.count(is_read, wqe.bytes);
  (is_read ? theirs.read_bytes : theirs.written_bytes).fetch_add(wqe.bytes, kRelaxed);
  (is_read ? theirs.read_messages : theirs.written_messages).fetch_add(1, kRelaxed);
}

// The next part of the request after `moved` bytes of it, at most `limit`.
NORIA_HOT Cut next_cut(const Qp& qp, const Wqe& wqe, uint64_t moved, uint64_t limit) {
  return qp.engine.places_late() ? next_cut_late(wqe.bytes, moved, limit, wqe.remote_address)
                                 : next_cut_early(wqe.bytes, moved, limit);
}

// Moves what is next, of `limit` bytes that may.
NORIA_HOT Outcome move_part(Qp& qp, Wqe& wqe, const Landing& landing, uint64_t limit) {
  const Cut cut = next_cut(qp, wqe, qp.moved, std::min(limit, kStepBytes));
  Pieces local;
  if (!gather(qp, wqe, cut, &local)) return fail(IBV_WC_LOC_PROT_ERR);
  const auto direction = wqe.opcode == IBV_WR_RDMA_READ ? Direction::from_peer : Direction::to_peer;
  const CopyResult result = transfer(*qp.target_peer, direction, landing, local, cut);
  if (result != CopyResult::done) return on_copy_failure(qp, result);
  qp.moved += cut.bytes;
  return qp.moved < wqe.bytes ? Outcome{Step::moved} : end_move(qp, wqe);
}

// What the target's hand did of the request. False if it failed, with `*outcome`.
bool take_answers(Qp& qp, Wqe& wqe, Outcome* outcome) {
  while (const auto answer = next_answer(qp)) {
    if (answer->status != IBV_WC_SUCCESS) {
      *outcome = fault_target(qp, answer->status);
      return false;
    }
    if (answer->data != nullptr) {
      Pieces local;
      if (!gather(qp, wqe, answer->cut, &local)) {
        *outcome = fail(IBV_WC_LOC_PROT_ERR);
        return false;
      }
      scatter(local, answer->data);
    }
    qp.moved += answer->cut.bytes;
  }
  return true;
}

Work work_of(Wqe& wqe) {
  switch (wqe.opcode) {
    case IBV_WR_RDMA_READ: return {HandWork::read};
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return {HandWork::fetch_add, wqe.operands()};
    case IBV_WR_ATOMIC_CMP_AND_SWP: return {HandWork::compare_swap, wqe.operands()};
    default: return {HandWork::write};
  }
}

// The same where the kernel does not let us touch the target: its own hand moves the bytes.
[[gnu::noinline]] Outcome move_by_hand(Qp& qp, Wqe& wqe, const Landing& landing, uint64_t limit) {
  const bool is_late = qp.engine.places_late();
  const Work work = work_of(wqe);
  const uint64_t end = qp.moved + limit;
  Outcome outcome{Step::waits};
  if (!take_answers(qp, wqe, &outcome)) return outcome;
  if (qp.moved == wqe.bytes) {
    qp.asked = 0;
    return end_move(qp, wqe);
  }
  while (qp.asked < end && can_ask(qp)) {
    Cut cut = next_cut(qp, wqe, qp.asked, std::min(end - qp.asked, kHandBytes));
    const Range range = one_range(landing, &cut, is_late);
    Pieces local;
    // What comes back must have a place to go before the target has done it.
    if (!gather(qp, wqe, cut, &local)) return fail(IBV_WC_LOC_PROT_ERR);
    const auto bytes = work.kind == HandWork::write ? local.all() : std::span<const iovec>();
    if (!ask(qp, cut, range, work, bytes)) return fail(IBV_WC_LOC_QP_OP_ERR);
    qp.asked += cut.bytes;
    if (is_late) break;  // one part a turn
  }
  return outcome;
}

// What every atomic must be.
Outcome check_atomic(Qp& qp, const Wqe& wqe) {
  if (wqe.bytes != kAtomicBytes) return fail(IBV_WC_LOC_LEN_ERR);
  if (wqe.remote_address % kAtomicBytes != 0) return fault_target(qp, IBV_WC_REM_INV_REQ_ERR);
  return {Step::moved};
}

// Over TCP the target does everything, and checks it.
[[gnu::noinline]] Outcome ask_target(Qp& qp, Wqe& wqe, uint64_t limit) {
  if (wqe.is_atomic())
    if (const Outcome refused = check_atomic(qp, wqe); refused.step == Step::failed) return refused;
  return ask_over_tcp(qp, wqe,
                      next_cut(qp, wqe, qp.moved, std::min<uint64_t>(limit, tcp::kMaxPayload)));
}

[[gnu::noinline]] Outcome do_atomic(Qp& qp, Wqe& wqe, const Landing& landing) {
  if (const Outcome refused = check_atomic(qp, wqe); refused.step == Step::failed) return refused;
  // What was asked of the target's hand is done there, though its memory is mapped by now: once.
  if (!landing.is_direct || qp.asked > 0)
    return move_by_hand(qp, wqe, landing, kAtomicBytes - qp.moved);
  uint8_t* word = direct_address(*qp.target_peer, landing.at[0], kAtomicBytes);
  if (reinterpret_cast<uintptr_t>(word) % kAtomicBytes != 0)
    return fault_target(qp, IBV_WC_REM_OP_ERR);
  Pieces local;
  if (!gather(qp, wqe, {0, kAtomicBytes}, &local)) return fail(IBV_WC_LOC_PROT_ERR);
  const uint64_t before =
      device_atomic(word, wqe.opcode == IBV_WR_ATOMIC_CMP_AND_SWP, wqe.operands());
  device_copy(local.at[0].iov_base, &before, sizeof before);
  return end_move(qp, wqe);
}

// Rides in the ring of notices; the receiver's poll puts it where it belongs. No system call.
NORIA_HOT Outcome send_in_place(Qp& qp, Wqe& wqe) {
  Pieces local;
  if (!gather(qp, wqe, {0, wqe.bytes}, &local)) return fail(IBV_WC_LOC_PROT_ERR);
  const bool is_tiny = wqe.bytes <= kInNotice;
  uint8_t* room = is_tiny ? next_notice(qp).payload
                          : qp.in_place + (qp.receives_taken & qp.ring_mask) * kInPlace;
  for (const iovec& piece : local.all()) {
    std::memcpy(room, piece.iov_base, piece.iov_len);
    room += piece.iov_len;
  }
  // For our own port; the target counts it as it takes it. Two locked additions would cost as much
  // as all the rest of the notice.
  qp.moved_in_all.count(false, wqe.bytes);
  announce(qp, wqe, IBV_WC_SUCCESS, is_tiny ? kIsInNotice : kIsInPlace);
  return {Step::finished};
}

// Whether the target took what was announced before it was in `state`.
bool has_taken(const Qp& qp, uint64_t state) {
  return generation_of(state) == generation_of(qp.target_state) && takes_requests(state_of(state));
}

// The same of a message for which any receive has room. It touches nothing of the target's, so that
// no mark is needed. A target that went to error meanwhile may have seen it or not: its answer is
// lost, and the wait for it ends as for any other that does not answer.
NORIA_HOT Outcome send_unmarked(Qp& qp, Wqe& wqe) {
  const Outcome sent = send_in_place(qp, wqe);
  // After the notice, both seq_cst: whoever changed the state sees the notice, or we see the state.
  const uint64_t state = qp.target->state.load(std::memory_order_seq_cst);
  if (sent.step != Step::finished || state == qp.target_state || has_taken(qp, state)) return sent;
  return {Step::moved};
}

// A message that its receive cannot take ends both sides.
[[gnu::noinline]] Outcome refuse_send(Qp& qp, const Wqe& wqe, ibv_wc_status at_receiver,
                                      ibv_wc_status here) {
  announce(qp, wqe, at_receiver, 0);
  return fault_target(qp, here);
}

[[gnu::noinline]] Outcome refuse_size(Qp& qp, const Wqe& wqe) {
  if (wqe.bytes > qp.max_message) return fail(IBV_WC_LOC_LEN_ERR);
  if (wqe.bytes > qp.target_takes) return fault_target(qp, IBV_WC_REM_INV_REQ_ERR);
  // The packets of one side are not as long as the other expects them.
  if (wqe.opcode == IBV_WR_RDMA_READ) return fail(IBV_WC_BAD_RESP_ERR);
  return fault_target(qp, IBV_WC_REM_INV_REQ_ERR);
}

// Of reads and atomics together: how many the target can answer at a time.
uint32_t reads_taken(const Qp& qp) {
  return qp.target->max_reads.load(std::memory_order_relaxed);  // published by its state
}

// Whether this queue may have more reads under way than its target can answer, where it was set up
// for more. Ours are answered one by one; on hardware all are under way that were posted since the
// last completion that the poster knows of, back to a fence.
[[gnu::noinline]] Outcome check_depth(Qp& qp) {
  if (qp.attr.max_rd_atomic == 0) return fail(IBV_WC_LOC_QP_OP_ERR);
  uint32_t count = 0;
  const auto is_fenced = [&](uint64_t number) {
    return (qp.wqe(number).flags & IBV_SEND_FENCE) != 0;
  };
  // acquire in both: pairs with drain() and post_send().
  const uint64_t first = qp.send_released.load(std::memory_order_acquire);
  const uint64_t end = qp.send_tail.load(std::memory_order_acquire);
  for (uint64_t i = qp.executed + 1; i-- > first;) {
    count += qp.wqe(i).is_answered() ? 1 : 0;
    if (is_fenced(i)) break;
  }
  for (uint64_t i = qp.executed + 1; i < end && !is_fenced(i); ++i)
    count += qp.wqe(i).is_answered() ? 1 : 0;
  if (std::min<uint32_t>(count, qp.attr.max_rd_atomic) <= reads_taken(qp)) return {Step::moved};
  return fault_target(qp, IBV_WC_REM_INV_REQ_ERR);
}

// Asks the owner of shared receives for as many as have messages waiting. True: it has looked.
bool ask_for_receives(Qp& qp) {
  constexpr uint64_t kAtOnce = 16;
  uint64_t count = 0;
  const uint64_t end = qp.send_tail.load(std::memory_order_acquire);  // with post_send()
  for (uint64_t i = qp.executed; i < end && count < kAtOnce; ++i)
    count += qp.wqe(i).takes_receive() ? 1 : 0;
  const uint64_t wanted = qp.receives_taken + count;
  if (qp.shared.receives_wanted.load(std::memory_order_relaxed) < wanted) {  // ours alone
    qp.shared.receives_wanted.store(wanted, std::memory_order_release);      // with supply()
    if (qp.target_peer->connection() != nullptr)
      want_over_tcp(qp, wanted);
    else
      qp.target_peer->wake();
  }
  // acquire: pairs with supply().
  return qp.target->supply_seen.load(std::memory_order_acquire) > qp.receives_taken;
}

// Whether one is posted. Looks at the target's count, a line that it writes with each receive, only
// when those are used up that were there the last time.
NORIA_HOT bool has_receive(Qp& qp) {
  // acquire: the WQE is read after; pairs with post_recv().
  if (qp.receives_seen <= qp.receives_taken)
    qp.receives_seen = qp.target->rq_tail.load(std::memory_order_acquire);
  return qp.receives_taken < qp.receives_seen;
}

// No receive is there. One that has to be asked for is not missing before its owner says so.
[[gnu::noinline]] Outcome wait_for_receive(Qp& qp, Wqe& wqe) {
  if (qp.target_peer->connection() != nullptr && is_host_gone(qp))
    return wait_for(qp, wqe, Wait::target);
  if (qp.target->has_shared_receives.load(std::memory_order_relaxed) != 0) {
    const bool has_looked = ask_for_receives(qp);
    if (qp.target->rq_tail.load(std::memory_order_acquire) > qp.receives_taken)
      return {Step::moved};
    Pieces local;
    if (!gather(qp, wqe, {0, wqe.bytes}, &local)) return fail(IBV_WC_LOC_PROT_ERR);
    if (!has_looked) {
      qp.wait = Wait::none;
      return {Step::waits};
    }
  }
  return wait_for(qp, wqe, Wait::receive);
}

}  // namespace

NORIA_HOT Outcome end_move(Qp& qp, const Wqe& wqe) {
  count_traffic(qp, wqe);
  if (wqe.takes_receive()) announce(qp, wqe, IBV_WC_SUCCESS, 0);
  return {Step::finished};
}

[[gnu::noinline]] Outcome wait_for(Qp& qp, Wqe& wqe, Wait why) {
  Pieces local;
  if (!gather(qp, wqe, {0, wqe.bytes}, &local)) return fail(IBV_WC_LOC_PROT_ERR);
  if (wqe.bytes > qp.max_message) return fail(IBV_WC_LOC_LEN_ERR);
  if (why == Wait::none) return {Step::paced};
  const Nanoseconds now = device_now();
  qp.pace.not_before = now;
  if (qp.wait != why) {
    qp.wait = why;
    qp.wait_since = now;
  }
  // Who has waited long is looked at less often: a receive that comes after seconds is not urgent.
  qp.patience.store(std::clamp((now - qp.wait_since) / 8, Engine::kSleeperTick, Engine::kLongTick),
                    std::memory_order_relaxed);  // a hint for next_look()
  const Nanoseconds limit = why == Wait::target ? ack_limit(qp) : rnr_limit(qp);
  if (limit == kNever || now - qp.wait_since < limit) return {Step::waits};
  return fail(why == Wait::target ? IBV_WC_RETRY_EXC_ERR : IBV_WC_RNR_RETRY_EXC_ERR);
}

NORIA_HOT Outcome take_step(Qp& qp, Wqe& wqe) {
  if (qp.tcp_ask.stage != TcpAsk::Stage::idle) [[unlikely]]
    return follow_over_tcp(qp, wqe);
  if (!reach_target(qp)) return wait_for(qp, wqe, Wait::target);
  if (wqe.bytes > qp.largest) return refuse_size(qp, wqe);
  uint64_t limit = wqe.bytes - qp.moved;
  if (qp.engine.is_shaped()) {
    if (!is_delivered(qp, wqe, device_now())) return wait_for(qp, wqe, Wait::none);
    limit = qp.pace.booked - qp.moved;
  }
  if (wqe.is_answered() && (qp.attr.max_rd_atomic == 0 || qp.attr.max_rd_atomic > reads_taken(qp)))
    if (const Outcome refused = check_depth(qp); refused.step == Step::failed) return refused;
  if (wqe.takes_receive() && !has_receive(qp)) return wait_for_receive(qp, wqe);
  qp.wait = Wait::none;
  if (qp.engine.places_late() && !begin_late(qp, wqe)) return {Step::waits};

  const bool is_send = wqe.opcode == IBV_WR_SEND || wqe.opcode == IBV_WR_SEND_WITH_IMM;
  // acquire: pairs with doubt_receives(); what post_recv() wrote came with its rq_tail.
  if (is_send && wqe.bytes < qp.target->rq_room.load(std::memory_order_acquire))
    return send_unmarked(qp, wqe);
  if (qp.target_peer->connection() != nullptr) [[unlikely]]
    return ask_target(qp, wqe, limit);
  const Mark mark(qp, is_send ? kAnyKey : wqe.rkey);
  if (qp.target->state.load(std::memory_order_seq_cst) != qp.target_state)  // after the mark
    return {Step::moved};
  const Landing landing = is_send ? find_receive(qp) : find_remote_range(qp, wqe);
  if (is_send && wqe.bytes > landing.room)
    return refuse_send(qp, wqe, IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR);
  if (!landing.is_valid)
    return is_send ? refuse_send(qp, wqe, IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR)
                   : fault_target(qp, IBV_WC_REM_ACCESS_ERR);
  if (wqe.is_atomic()) return do_atomic(qp, wqe, landing);
  if (qp.asked > 0) return move_by_hand(qp, wqe, landing, limit);  // goes on as it began
  if (landing.is_direct) return move_part(qp, wqe, landing, limit);
  if (is_send && wqe.bytes <= kInPlace) return send_in_place(qp, wqe);
  return !landing.is_posted && (qp.target_peer->can_attach() || !qp.engine.may_ask())
             ? move_part(qp, wqe, landing, limit)
             : move_by_hand(qp, wqe, landing, limit);
}

void wake_target(Qp& qp) {
  const Arm message = std::exchange(qp.wakes, Arm::off);
  // acquire: pairs with modify_qp(). What was reset since has no sleeper of ours.
  if (message == Arm::off || generation_of(qp.target->state.load(std::memory_order_acquire)) !=
                                 generation_of(qp.target_state))
    return;
  const SharedSegment& theirs = qp.target_peer->shared();
  const SharedCq& cq = theirs.cqs[qp.target->recv_cq.load(std::memory_order_relaxed) % kMaxCqs];
  const uint32_t armed = cq.armed.load(std::memory_order_seq_cst);
  if (arm_of(armed) == Arm::off || (arm_of(armed) == Arm::solicited && message == Arm::any)) return;
  if (qp.shared.fired.load(std::memory_order_relaxed) == armed) return;  // told already
  qp.shared.fired.store(armed, std::memory_order_release);               // pairs with has_event()
  const int fd = qp.target_peer->channel_fd(cq.channel.load(std::memory_order_relaxed));
  if (fd >= 0)
    signal_event(fd);
  else
    qp.target_peer->wake();  // its service thread passes it on
}

}  // namespace noria::soft
