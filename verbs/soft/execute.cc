// The send queue at work: its requests take effect in order, and complete in order.
#include <algorithm>

#include "verbs/soft/batch.hpp"
#include "verbs/soft/completion_queue.hpp"
#include "verbs/soft/device_time.hpp"
#include "verbs/soft/engine.hpp"
#include "verbs/soft/faults.hpp"
#include "verbs/soft/pace.hpp"
#include "verbs/soft/step.hpp"

namespace noria::soft {
namespace {

ibv_wc_opcode completion_opcode(ibv_wr_opcode opcode) {
  switch (opcode) {
    case IBV_WR_RDMA_WRITE:
    case IBV_WR_RDMA_WRITE_WITH_IMM: return IBV_WC_RDMA_WRITE;
    case IBV_WR_RDMA_READ: return IBV_WC_RDMA_READ;
    case IBV_WR_ATOMIC_FETCH_AND_ADD: return IBV_WC_FETCH_ADD;
    case IBV_WR_ATOMIC_CMP_AND_SWP: return IBV_WC_COMP_SWAP;
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

// Completes what took effect and may be known by now; all of it, of a queue pair that is not live
// any more. When the next may be, kNever if none waits for a time.
Nanoseconds complete_known(Qp& qp, bool is_live) {
  const bool is_paced = qp.engine.is_shaped() && is_live;
  const Nanoseconds now = is_paced ? device_now() : kNever;
  bool has_failed = false;
  while (true) {
    const uint64_t head = qp.send_head.load(std::memory_order_relaxed);  // ours alone under exec
    if (head == qp.executed) return kNever;
    const Wqe& wqe = qp.wqe(head);
    if (is_paced && !has_failed && wqe.known > now) return wqe.known;
    if (is_live && !has_failed && !has_landed(qp, head)) return kNever;
    const ibv_wc_status landed = release_answer(qp, head);
    complete(qp, wqe, has_failed ? IBV_WC_WR_FLUSH_ERR : landed);
    if (landed != IBV_WC_SUCCESS) has_failed = true;
    if (has_failed) enter_error(qp);
  }
}

// The request that is being executed fails: completes those before it, for completions keep their
// order. The status that is left for it: one of them may have failed first.
[[gnu::noinline]] ibv_wc_status end_earlier(Qp& qp, ibv_wc_status status) {
  const auto is_live = [&qp] {
    return qp.current.load(std::memory_order_acquire) == IBV_QPS_RTS;  // with enter_error()
  };
  release_answer(qp, qp.executed);
  if (is_live()) land_all(qp);
  complete_known(qp, false);
  return is_live() ? status : IBV_WC_WR_FLUSH_ERR;
}

// Ends the request that is being executed.
NORIA_HOT void conclude(Qp& qp, Wqe& wqe, ibv_wc_status status) {
  qp.moved = 0;
  qp.wait = Wait::none;
  qp.patience.store(0, std::memory_order_relaxed);  // a hint for next_look()
  const bool is_paced = qp.engine.is_shaped();
  if (is_paced && status == IBV_WC_SUCCESS) wqe.known = known_at(qp, wqe);
  if (is_paced) qp.pace.next_request();
  if (is_paced || !qp.held.all.empty()) {
    if (status == IBV_WC_SUCCESS) {
      ++qp.executed;
      return;
    }
    status = end_earlier(qp, status);
  }
  ++qp.executed;
  complete(qp, wqe, status);
}

// Ends the next requests, which took effect together. How many bytes they moved.
NORIA_HOT uint64_t conclude_batch(Qp& qp, uint64_t count) {
  uint64_t bytes = 0;
  for (uint64_t i = 0; i < count; ++i) {
    Wqe& wqe = qp.wqe(qp.executed);
    bytes += wqe.bytes;
    conclude(qp, wqe, IBV_WC_SUCCESS);
  }
  wake_target(qp);
  return bytes;
}

// Executes until the queue is empty, waits, or has used up the budget. Under exec.
NORIA_HOT Progress execute(Qp& qp, uint64_t budget) {
  while (true) {
    const uint64_t end = qp.send_tail.load(std::memory_order_acquire);  // pairs with post_send()
    if (qp.executed == end) return Progress::idle;
    Wqe& wqe = qp.wqe(qp.executed);
    // acquire: a flush sees what led to the error; pairs with enter_error().
    const uint32_t state = qp.current.load(std::memory_order_acquire);
    if (state == IBV_QPS_ERR) {
      conclude(qp, wqe, IBV_WC_WR_FLUSH_ERR);
      continue;
    }
    if (state != IBV_QPS_RTS) return Progress::idle;
    if (const uint64_t count = move_batch(qp, end); count > 0) {
      const uint64_t bytes = conclude_batch(qp, count);
      if (bytes >= budget) return Progress::wants_more;
      budget -= bytes;
      continue;
    }
    const uint64_t before = qp.moved;
    const Outcome outcome = qp.faults == nullptr ? take_step(qp, wqe) : take_faulty_step(qp, wqe);
    if (outcome.step == Step::waits) return Progress::waits;
    if (outcome.step == Step::paced) return Progress::paced;
    const bool is_finished = outcome.step == Step::finished;
    const uint64_t bytes = (is_finished ? wqe.bytes : qp.moved) - before;
    if (outcome.step != Step::moved) {
      conclude(qp, wqe, outcome.status);
      wake_target(qp);
    }
    if (outcome.step == Step::failed) enter_error(qp);
    if (is_finished || outcome.step == Step::moved) {
      if (bytes >= budget) return Progress::wants_more;
      budget -= bytes;
    }
  }
}

// The same where a request that took effect does not complete at once: on a shaped link, and where
// answers land late.
Progress execute_delayed(Qp& qp, uint64_t budget) {
  const Progress progress = execute(qp, budget);
  const bool is_through = qp.executed == qp.send_tail.load(std::memory_order_acquire);
  // An error state lets everything go at once, and nothing land.
  const bool is_live = qp.current.load(std::memory_order_acquire) == IBV_QPS_RTS;
  if (is_live && (progress != Progress::wants_more || is_through)) land_one(qp);
  const Nanoseconds known = complete_known(qp, is_live);
  if (!qp.engine.is_shaped()) return progress;
  const Nanoseconds now = device_now();
  Nanoseconds due = known;
  if (!qp.held.all.empty()) due = std::min(due, now + Engine::kSleeperTick);
  if (progress == Progress::paced) due = std::min(due, qp.pace.arrival);
  if (progress == Progress::waits)
    due = std::min(due, now + qp.patience.load(std::memory_order_relaxed));
  if (progress == Progress::wants_more)
    due = qp.engine.places_late() ? now + Engine::kSleeperTick : Engine::kAtOnce;
  qp.pace.due.store(due, std::memory_order_release);  // pairs with next_look()
  return due == kNever ? progress : Progress::paced;
}

}  // namespace

NORIA_HOT Progress try_execute(Qp& qp, uint64_t budget) {
  if (!qp.exec.try_lock()) return Progress::waits;
  const bool is_delayed = qp.engine.is_shaped() || qp.engine.places_late();
  const Progress progress = is_delayed ? execute_delayed(qp, budget) : execute(qp, budget);
  qp.exec.unlock();
  return progress;
}

Nanoseconds next_look(const Qp& qp, Progress progress) {
  // acquire: pairs with execute_delayed().
  if (progress == Progress::paced) return qp.pace.due.load(std::memory_order_acquire);
  const Nanoseconds tick = is_armed(qp.sends_to()) ? Engine::kSleeperTick : Engine::kTick;
  return device_now() + std::max(tick, qp.patience.load(std::memory_order_relaxed));  // wait_for()
}

NORIA_HOT void advance(Qp& qp, uint64_t budget) {
  const Progress progress = try_execute(qp, budget);
  // Left over: the budget is used up, the head waits, or another thread is at it and may just have
  // looked for the last time. An owner that sleeps will not poll for it.
  if (!qp.has_work()) return;
  const bool is_urgent =
      progress == Progress::wants_more && is_armed(qp.sends_to()) && !qp.engine.places_late();
  qp.engine.request_service(is_urgent ? Engine::kAtOnce : next_look(qp, progress));
}

}  // namespace noria::soft
