// The initiator at work: what the head of a send queue does to its target.
#include <algorithm>
#include <cstring>

#include "base/log.hpp"
#include "verbs/soft/bind_target.hpp"
#include "verbs/soft/completion_queue.hpp"
#include "verbs/soft/engine.hpp"
#include "verbs/soft/pace.hpp"
#include "verbs/soft/queue_pair.hpp"

namespace noria::soft {
namespace {

enum class Step {
  finished,  // the request is through
  moved,     // some of it is; or what it rests on has changed: look again
  waits,     // for the target, or for a receive
  paced,     // for the shaped link to deliver
  failed,    // with `status`
};
struct Outcome {
  Step step;
  ibv_wc_status status = IBV_WC_SUCCESS;
};
constexpr Outcome fail(ibv_wc_status status) { return {Step::failed, status}; }

// The local side of one step: the pieces of memory that hold its bytes.
struct Pieces {
  iovec at[kMaxSge];
  size_t count = 0;
  std::span<const iovec> all() const { return {at, count}; }
};

bool add_piece(Qp& qp, const ibv_sge& sge, uint32_t access, uint64_t skip, uint64_t bytes,
               Pieces* out) {
  const auto range =
      find_range(qp.engine.shared(), sge.lkey, qp.pd_number, access, sge.addr, sge.length);
  if (!range) return false;
  if (bytes > 0) out->at[out->count++] = {reinterpret_cast<void*>(range->address + skip), bytes};
  return true;
}

// Collects `bytes` of the request from `qp.moved` on. Every step looks the keys up anew, so that a
// region that was deregistered meanwhile is not touched.
bool gather(Qp& qp, Wqe& wqe, uint64_t bytes, Pieces* out) {
  if ((wqe.flags & IBV_SEND_INLINE) != 0) {
    if (wqe.bytes > 0) out->at[out->count++] = {wqe.inline_data(), wqe.bytes};
    return true;
  }
  const uint32_t access = wqe.opcode == IBV_WR_RDMA_READ ? IBV_ACCESS_LOCAL_WRITE : 0;
  uint64_t skip = qp.moved;
  for (uint32_t i = 0; i < wqe.sge_count; ++i) {
    const ibv_sge& sge = wqe.sges()[i];
    const uint64_t skipped = std::min<uint64_t>(skip, sge.length);
    const uint64_t take = std::min<uint64_t>(bytes, sge.length - skipped);
    if (sge.length > 0 && !add_piece(qp, sge, access, skipped, take, out)) return false;
    skip -= skipped;
    bytes -= take;
  }
  return true;
}

// Names what we are about to touch, for as long as it lives. Whoever revokes it afterwards waits;
// whoever revoked it before is seen by the checks that follow.
class Mark {
 public:
  Mark(Qp& qp, uint32_t key) : word_(qp.shared.mark) {
    // seq_cst: the mark is visible before anything of the target is read; pairs with the fence
    // between revoking and reading marks.
    word_.exchange(make_mark(qp.attr.dest_qp_num, key), std::memory_order_seq_cst);
  }
  ~Mark() { word_.store(0, std::memory_order_release); }  // our copies come before
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

 private:
  Word64& word_;
};

// Tells a sleeper of the target's receive CQ, if it is armed for this. After `tail` was published
// with seq_cst: either the sleeper's next poll sees the notice, or we see that it armed.
void fire_remote(Qp& qp, bool is_solicited) {
  const SharedSegment& theirs = qp.target_peer->shared();
  const SharedCq& cq = theirs.cqs[qp.target->recv_cq.load(std::memory_order_relaxed) % kMaxCqs];
  const uint32_t armed = cq.armed.load(std::memory_order_seq_cst);
  if (arm_of(armed) == Arm::off || (arm_of(armed) == Arm::solicited && !is_solicited)) return;
  if (qp.shared.fired.load(std::memory_order_relaxed) == armed) return;  // told already
  qp.shared.fired.store(armed, std::memory_order_release);               // pairs with has_event()
  const int fd = qp.target_peer->channel_fd(cq.channel.load(std::memory_order_relaxed));
  if (fd >= 0)
    signal_event(fd);
  else
    qp.target_peer->wake();  // its service thread passes it on
}

// The message is there: the receiver may see it.
NORIA_HOT void announce(Qp& qp, const Wqe& wqe, ibv_wc_status status, uint32_t flags) {
  Notice& notice = qp.ring[qp.receives_taken & qp.ring_mask];
  const bool has_imm =
      wqe.opcode == IBV_WR_SEND_WITH_IMM || wqe.opcode == IBV_WR_RDMA_WRITE_WITH_IMM;
  if (has_imm) flags |= kHasImm;
  if (wqe.opcode == IBV_WR_RDMA_WRITE_WITH_IMM) flags |= kIsWrite;
  notice.bytes = static_cast<uint32_t>(wqe.bytes);
  notice.imm = wqe.imm;
  notice.status = status;
  notice.flags = flags;
  ++qp.receives_taken;
  // Publishes notice and payload, pairs with harvest(); seq_cst for fire_remote().
  qp.shared.tail.exchange(qp.receives_taken, std::memory_order_seq_cst);
  fire_remote(qp, (wqe.flags & IBV_SEND_SOLICITED) != 0 || status != IBV_WC_SUCCESS);
}

// The request broke a rule of the target: as on hardware, its queue pair goes to error too.
[[gnu::noinline]] Outcome fault_target(Qp& qp, ibv_wc_status status) {
  qp.shared.tail.fetch_or(kFaultBit, std::memory_order_seq_cst);  // pairs with harvest()
  qp.target_peer->wake();
  return fail(status);
}

[[gnu::noinline]] Outcome on_copy_failure(Qp& qp, CopyResult result) {
  switch (result) {
    case CopyResult::gone: qp.target_peer->mark_dead(); return {Step::moved};
    case CopyResult::refused:
      log(LogLevel::error,
          "qp 0x%x: the kernel forbids cross-memory attach to process %d; allow it, or use "
          "memory of ibv_noria_alloc",
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

void count_traffic(Qp& qp, const Wqe& wqe) {
  Traffic& traffic = qp.engine.shared().header.traffic[slot_of(qp.attr.dest_qp_num)];
  const bool is_read = wqe.opcode == IBV_WR_RDMA_READ;
  // relaxed: counters order nothing.
  (is_read ? traffic.read_bytes : traffic.written_bytes)
      .fetch_add(wqe.bytes, std::memory_order_relaxed);
  (is_read ? traffic.read_messages : traffic.written_messages)
      .fetch_add(1, std::memory_order_relaxed);
}

NORIA_HOT Outcome step_rdma(Qp& qp, const Wqe& wqe, const Pieces& local, uint64_t bytes) {
  const bool is_read = wqe.opcode == IBV_WR_RDMA_READ;
  const uint32_t access = is_read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE;
  if (wqe.bytes > 0) {
    if ((qp.target->access.load(std::memory_order_relaxed) & access) == 0)
      return fault_target(qp, IBV_WC_REM_ACCESS_ERR);
    auto range = find_range(qp.target_peer->shared(), wqe.rkey,
                            qp.target->pd.load(std::memory_order_relaxed), access,
                            wqe.remote_address, wqe.bytes);
    if (!range) return fault_target(qp, IBV_WC_REM_ACCESS_ERR);
    range->address += qp.moved;
    range->allocation_offset += qp.moved;
    const CopyResult result =
        copy(*qp.target_peer, is_read ? Direction::from_peer : Direction::to_peer, local.all(),
             *range, bytes);
    if (result != CopyResult::done) return on_copy_failure(qp, result);
  }
  qp.moved += bytes;
  if (qp.moved < wqe.bytes) return {Step::moved};
  count_traffic(qp, wqe);
  if (wqe.takes_receive()) announce(qp, wqe, IBV_WC_SUCCESS, 0);
  return {Step::finished};
}

// The receive that the next message uses up, resolved.
struct Landing {
  Range at[kMaxSge];
  uint64_t bytes[kMaxSge];
  size_t count = 0;
  uint64_t room = 0;
  bool is_valid = true;   // every key is good
  bool is_direct = true;  // loads and stores reach all of it
};

Landing find_landing(const Qp& qp) {
  const SharedSegment& theirs = qp.target_peer->shared();
  const SharedQp& target = *qp.target;
  constexpr auto kRelaxed = std::memory_order_relaxed;  // ordered by rq_tail and state
  const uint64_t slot = qp.receives_taken & (target.rq_depth.load(kRelaxed) - 1);
  const auto& receive = *reinterpret_cast<const SharedRecv*>(
      theirs.rings + target.rq_offset.load(kRelaxed) + slot * target.rq_stride.load(kRelaxed));
  const uint32_t pd = target.pd.load(kRelaxed);
  Landing landing;
  landing.count = std::min<size_t>(receive.sge_count.load(kRelaxed), kMaxSge);
  for (size_t i = 0; i < landing.count; ++i) {
    const SharedSge& sge = receive.sge[i];
    const uint64_t length = sge.length.load(kRelaxed);
    landing.bytes[i] = length;
    landing.room += length;
    if (length == 0) continue;
    const auto range = find_range(theirs, sge.key.load(kRelaxed), pd, IBV_ACCESS_LOCAL_WRITE,
                                  sge.address.load(kRelaxed), length);
    if (!range) {
      landing.is_valid = false;
      continue;
    }
    landing.at[i] = *range;
    if (direct_address(*qp.target_peer, *range) == nullptr) landing.is_direct = false;
  }
  return landing;
}

// Takes `bytes` off the front of `from`.
Pieces take_front(Pieces* from, uint64_t bytes) {
  Pieces taken;
  size_t i = 0;
  for (; i < from->count && bytes > 0; ++i) {
    iovec& piece = from->at[i];
    const uint64_t part = std::min<uint64_t>(bytes, piece.iov_len);
    taken.at[taken.count++] = {piece.iov_base, part};
    bytes -= part;
    piece = {static_cast<uint8_t*>(piece.iov_base) + part, piece.iov_len - part};
    if (piece.iov_len > 0) break;
  }
  std::copy(from->at + i, from->at + from->count, from->at);
  from->count -= i;
  return taken;
}

CopyResult scatter(Qp& qp, Landing& landing, Pieces local, uint64_t bytes) {
  uint64_t skip = qp.moved;
  for (size_t i = 0; i < landing.count && bytes > 0; ++i) {
    const uint64_t skipped = std::min(skip, landing.bytes[i]);
    skip -= skipped;
    const uint64_t part = std::min(bytes, landing.bytes[i] - skipped);
    if (part == 0) continue;
    Range range = landing.at[i];
    range.address += skipped;
    range.allocation_offset += skipped;
    const Pieces front = take_front(&local, part);
    const CopyResult result = copy(*qp.target_peer, Direction::to_peer, front.all(), range, part);
    if (result != CopyResult::done) return result;
    bytes -= part;
  }
  return CopyResult::done;
}

// A message that its receive cannot take ends both sides.
[[gnu::noinline]] Outcome refuse_send(Qp& qp, const Wqe& wqe, ibv_wc_status at_receiver,
                                      ibv_wc_status here) {
  announce(qp, wqe, at_receiver, 0);
  return fault_target(qp, here);
}

NORIA_HOT Outcome step_send(Qp& qp, const Wqe& wqe, const Pieces& local, uint64_t bytes) {
  Landing landing = find_landing(qp);
  if (wqe.bytes > landing.room)
    return refuse_send(qp, wqe, IBV_WC_LOC_LEN_ERR, IBV_WC_REM_INV_REQ_ERR);
  if (!landing.is_valid) return refuse_send(qp, wqe, IBV_WC_LOC_PROT_ERR, IBV_WC_REM_OP_ERR);

  if (wqe.bytes <= kInPlace && !landing.is_direct) {
    // Rides in the ring; the receiver's poll puts it where it belongs. No system call.
    uint8_t* room = qp.in_place + (qp.receives_taken & qp.ring_mask) * kInPlace;
    for (const iovec& piece : local.all()) {
      std::memcpy(room, piece.iov_base, piece.iov_len);
      room += piece.iov_len;
    }
    count_traffic(qp, wqe);
    announce(qp, wqe, IBV_WC_SUCCESS, kIsInPlace);
    return {Step::finished};
  }
  const CopyResult result = scatter(qp, landing, local, bytes);
  if (result != CopyResult::done) return on_copy_failure(qp, result);
  qp.moved += bytes;
  if (qp.moved < wqe.bytes) return {Step::moved};
  count_traffic(qp, wqe);
  announce(qp, wqe, IBV_WC_SUCCESS, 0);
  return {Step::finished};
}

// The wait of the head request: goes on, or ends in an error after the time that the connection's
// attributes give it.
[[gnu::noinline]] Outcome wait_for(Qp& qp, Wait why) {
  const Nanoseconds now = now_ns();
  qp.pace.not_before = now;
  if (qp.wait != why) {
    qp.wait = why;
    qp.wait_since = now;
  }
  const Nanoseconds limit = why == Wait::target ? ack_limit(qp) : rnr_limit(qp);
  if (limit == kNever || now - qp.wait_since < limit) return {Step::waits};
  return fail(why == Wait::target ? IBV_WC_RETRY_EXC_ERR : IBV_WC_RNR_RETRY_EXC_ERR);
}

NORIA_HOT Outcome take_step(Qp& qp, Wqe& wqe) {
  uint64_t bytes = std::min(wqe.bytes - qp.moved, kStepBytes);
  Pieces local;
  if (!gather(qp, wqe, bytes, &local)) return fail(IBV_WC_LOC_PROT_ERR);
  if (wqe.bytes > kMaxMessage) return fail(IBV_WC_LOC_LEN_ERR);
  if (!reach_target(qp)) return wait_for(qp, Wait::target);
  if (qp.engine.shaper().is_on()) {
    if (!is_delivered(qp, wqe, now_ns())) return {Step::paced};
    bytes = std::min(qp.pace.booked - qp.moved, kStepBytes);
    local.count = 0;
    if (!gather(qp, wqe, bytes, &local)) return fail(IBV_WC_LOC_PROT_ERR);
  }
  if (wqe.opcode == IBV_WR_RDMA_READ &&
      (qp.attr.max_rd_atomic == 0 || qp.target->max_reads.load(std::memory_order_relaxed) == 0))
    return fault_target(qp, IBV_WC_REM_INV_REQ_ERR);
  // acquire: the WQE is read after; pairs with post_recv().
  if (wqe.takes_receive() &&
      qp.target->rq_tail.load(std::memory_order_acquire) <= qp.receives_taken)
    return wait_for(qp, Wait::receive);
  qp.wait = Wait::none;

  const bool is_send = wqe.opcode == IBV_WR_SEND || wqe.opcode == IBV_WR_SEND_WITH_IMM;
  const Mark mark(qp, is_send ? kAnyKey : wqe.rkey);
  if (qp.target->state.load(std::memory_order_acquire) != qp.target_state) return {Step::moved};
  return is_send ? step_send(qp, wqe, local, bytes) : step_rdma(qp, wqe, local, bytes);
}

ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM: return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ: return IBV_WC_RDMA_READ;
    default: return IBV_WC_SEND;
  }
}

// Completes the oldest request of the queue.
NORIA_HOT void complete(Qp& qp, const Wqe& wqe, ibv_wc_status status) {
  // relaxed load: only the holder of exec writes it.
  const uint64_t head = qp.send_head.load(std::memory_order_relaxed);
  if (status != IBV_WC_SUCCESS || (wqe.flags & IBV_SEND_SIGNALED) != 0) {
    Done done{};
    done.wc.wr_id = wqe.wr_id;
    done.wc.status = status;
    done.wc.opcode = completion_opcode(wqe.opcode);
    done.wc.byte_len = static_cast<uint32_t>(wqe.bytes);
    done.wc.qp_num = qp.qp_num;
    done.qp = &qp;
    done.released = head + 1;
    push_completion(qp.sends_to(), done);
  }
  qp.send_head.store(head + 1, std::memory_order_release);  // pairs with has_work()
}

// Completes what took effect and may be known at `now`. When the next may be, kNever if none waits.
Nanoseconds complete_known(Qp& qp, Nanoseconds now) {
  while (true) {
    const uint64_t head = qp.send_head.load(std::memory_order_relaxed);  // ours alone under exec
    if (head == qp.executed) return kNever;
    const Wqe& wqe = qp.wqe(head);
    if (wqe.known > now) return wqe.known;
    complete(qp, wqe, IBV_WC_SUCCESS);
  }
}

// Ends the request that is being executed.
NORIA_HOT void conclude(Qp& qp, Wqe& wqe, ibv_wc_status status) {
  qp.moved = 0;
  qp.wait = Wait::none;
  if (qp.engine.shaper().is_on()) {
    if (status == IBV_WC_SUCCESS) {
      wqe.known = known_at(qp, wqe);
      qp.pace.next_request();
      ++qp.executed;
      return;
    }
    qp.pace.next_request();
    complete_known(qp, kNever);  // completions keep their order
  }
  ++qp.executed;
  complete(qp, wqe, status);
}

// Executes until the queue is empty, waits, or has used up the budget. Under exec.
NORIA_HOT Progress execute(Qp& qp, uint64_t budget) {
  while (qp.executed != qp.send_tail.load(std::memory_order_acquire)) {  // pairs with post_send()
    Wqe& wqe = qp.wqe(qp.executed);
    // acquire: a flush sees what led to the error; pairs with enter_error().
    const uint32_t state = qp.current.load(std::memory_order_acquire);
    if (state == IBV_QPS_ERR) {
      conclude(qp, wqe, IBV_WC_WR_FLUSH_ERR);
      continue;
    }
    if (state != IBV_QPS_RTS) return Progress::idle;
    const uint64_t before = qp.moved;
    const Outcome outcome = take_step(qp, wqe);
    if (outcome.step == Step::waits) return Progress::waits;
    if (outcome.step == Step::paced) return Progress::paced;
    const bool is_finished = outcome.step == Step::finished;
    const uint64_t bytes = (is_finished ? wqe.bytes : qp.moved) - before;
    if (outcome.step != Step::moved) conclude(qp, wqe, outcome.status);
    if (outcome.step == Step::failed) enter_error(qp);
    if (is_finished || outcome.step == Step::moved) {
      if (bytes >= budget) return Progress::wants_more;
      budget -= bytes;
    }
  }
  return Progress::idle;
}

// The same on a shaped link.
Progress execute_paced(Qp& qp, uint64_t budget) {
  const Progress progress = execute(qp, budget);
  // An error state lets everything go at once.
  const bool is_live = qp.current.load(std::memory_order_acquire) == IBV_QPS_RTS;
  const Nanoseconds now = now_ns();
  const Nanoseconds known = complete_known(qp, is_live ? now : kNever);
  Nanoseconds due = known;
  if (progress == Progress::paced) due = std::min(due, qp.pace.arrival);
  if (progress == Progress::waits) due = std::min(due, now + Engine::kSleeperTick);
  if (progress == Progress::wants_more) due = Engine::kAtOnce;
  qp.pace.due.store(due, std::memory_order_release);  // pairs with next_look()
  return due == kNever ? progress : Progress::paced;
}

}  // namespace

NORIA_HOT Progress try_execute(Qp& qp, uint64_t budget) {
  if (!qp.exec.try_lock()) return Progress::waits;
  const Progress progress =
      qp.engine.shaper().is_on() ? execute_paced(qp, budget) : execute(qp, budget);
  qp.exec.unlock();
  return progress;
}

Nanoseconds next_look(const Qp& qp, Progress progress) {
  // acquire: pairs with execute_paced().
  if (progress == Progress::paced) return qp.pace.due.load(std::memory_order_acquire);
  return now_ns() + (is_armed(qp.sends_to()) ? Engine::kSleeperTick : Engine::kTick);
}

NORIA_HOT void advance(Qp& qp, uint64_t budget) {
  const Progress progress = try_execute(qp, budget);
  // Left over: the budget is used up, the head waits, or another thread is at it and may just have
  // looked for the last time. An owner that sleeps will not poll for it.
  if (!qp.has_work()) return;
  const bool is_urgent = progress == Progress::wants_more && is_armed(qp.sends_to());
  qp.engine.request_service(is_urgent ? Engine::kAtOnce : next_look(qp, progress));
}

}  // namespace noria::soft
