#include "verbs/soft/completion_queue.hpp"

#include <errno.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "verbs/soft/async_events.hpp"
#include "verbs/soft/engine.hpp"

namespace noria::soft {

Cq::Cq(Engine& engine_in, SharedCq& shared_in, uint32_t index_in, uint32_t depth,
       Channel* channel_in)
    : ibv_cq{},
      engine(engine_in),
      shared(shared_in),
      index(index_in),
      coin(index_in + 1),
      done(std::make_unique_for_overwrite<Done[]>(depth)) {
  cqe = static_cast<int>(depth);
  handle = index;
  channel = channel_in;
  // An earlier queue of this index may have been armed last. Release: with wake_target().
  arm_count = shared.armed.load(std::memory_order_relaxed) >> 2;
  shared.armed.store(arm_count << 2, std::memory_order_relaxed);
  shared.channel.store(channel_in != nullptr ? channel_in->id : 0, std::memory_order_release);
}

namespace {

// Takes send completions out. Under the list lock.
NORIA_HOT int drain(Cq& cq, int room, ibv_wc* out) {
  // acquire: pairs with push_completion(); a late look costs one poll.
  if (cq.done_count.load(std::memory_order_acquire) == 0) return 0;
  SpinGuard guard(cq.push);
  const auto depth = static_cast<uint64_t>(cq.cqe);
  int count = 0;
  for (; count < room && cq.done_head != cq.done_tail; ++count, ++cq.done_head) {
    const Done& done = cq.done[cq.done_head % depth];
    out[count] = done.wc;
    // release: the slot may be written again; pairs with post_send().
    done.qp->send_released.store(done.released, std::memory_order_release);
  }
  cq.done_count.store(cq.done_tail - cq.done_head, std::memory_order_release);
  return count;
}

}  // namespace

NORIA_COLD void on_overrun(Cq& cq) {
  if (cq.has_told_overrun.exchange(true, std::memory_order_relaxed)) return;  // one of us says it
  log(LogLevel::error,
      "cq %u: more completions than its %d entries; poll more often or create it larger", cq.index,
      cq.cqe);
  raise_event(&cq, IBV_EVENT_CQ_ERR);
  // release: that event comes before those of the queue pairs; pairs with tend_queues().
  cq.is_overrun.store(true, std::memory_order_release);
  cq.engine.request_service(
      Engine::kAtOnce);  // which ends the queue pairs: here their locks are held
}

namespace {
// Completions that a device would have put into the queue by now.
uint64_t waiting(Cq& cq) NORIA_REQUIRES(cq.list) {
  uint64_t count = cq.done_count.load(std::memory_order_acquire);  // with push_completion()
  for (Qp* qp : cq.receivers) count += unread(*qp);
  return count;
}
}  // namespace

NORIA_HOT int poll_cq(Cq& cq, int room, ibv_wc* out) {
  if (TcpNetwork* tcp = cq.engine.tcp(); tcp != nullptr) [[unlikely]]
    tcp->pump(is_armed(cq));
  SpinGuard guard(cq.list);
  const bool is_late = cq.engine.places_late();
  for (Qp* qp : cq.senders)
    if (qp->has_work() && (!is_late || cq.coin.flip())) advance(*qp, is_late ? 0 : kExecuteBudget);
  // Each peer's notices fit; whether all together do is looked at only by a device that is strict.
  if (is_late && waiting(cq) > static_cast<uint64_t>(cq.cqe)) on_overrun(cq);
  if (cq.is_overrun.load(std::memory_order_acquire)) return -1;  // with on_overrun()
  int count = drain(cq, room, out);
  const size_t receivers = cq.receivers.size();
  for (size_t i = 0; i < receivers && count < room; ++i) {
    if (cq.next_receiver >= receivers) cq.next_receiver = 0;
    count += harvest(*cq.receivers[cq.next_receiver], out + count, room - count);
    if (count < room) ++cq.next_receiver;
  }
  return count;
}

NORIA_HOT void push_completion(Cq& cq, const Done& done) {
  {
    SpinGuard guard(cq.push);
    const auto depth = static_cast<uint64_t>(cq.cqe);
    if (cq.done_tail - cq.done_head == depth) {
      on_overrun(cq);
    } else {
      cq.done[cq.done_tail % depth] = done;
      ++cq.done_tail;
      cq.done_count.store(cq.done_tail - cq.done_head, std::memory_order_release);  // with drain()
    }
  }
  fire_local(cq, done.wc.status != IBV_WC_SUCCESS);
}

void fire_local(Cq& cq, bool is_solicited) {
  if (cq.channel == nullptr) return;
  // Either the sleeper's next poll sees the completion, or we see that it armed.
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with arm_cq()
  const uint32_t armed = cq.shared.armed.load(std::memory_order_acquire);
  if (arm_of(armed) == Arm::off || (arm_of(armed) == Arm::solicited && !is_solicited)) return;
  if (cq.fired.exchange(armed, std::memory_order_acq_rel) == armed) return;  // with has_event()
  signal_event(cq.channel->fd);
}

namespace {
bool has_event_locked(Cq& cq) NORIA_REQUIRES(cq.list) {
  const uint32_t armed = cq.shared.armed.load(std::memory_order_relaxed);  // ours alone
  if (cq.event_due) return true;
  if (arm_of(armed) == Arm::off) return false;
  if (cq.fired.load(std::memory_order_acquire) == armed) return true;  // with fire_local()
  return std::any_of(cq.receivers.begin(), cq.receivers.end(), [armed](Qp* qp) {
    return is_source_bound(*qp) &&
           qp->source->fired.load(std::memory_order_acquire) == armed;  // with wake_target()
  });
}
}  // namespace

int arm_cq(Cq& cq, bool solicited_only) {
  SpinGuard guard(cq.list);
  const Arm arm = solicited_only ? Arm::solicited : Arm::any;
  // Armed for any, asked for solicited: the wider request stands.
  if (cq.channel == nullptr) return 0;
  const uint32_t armed = cq.shared.armed.load(std::memory_order_relaxed);  // ours alone
  if (arm_of(armed) == Arm::any && arm == Arm::solicited) return 0;
  // An earlier arming was answered and nobody has taken the event yet: it stays due.
  if (has_event_locked(cq)) cq.event_due = true;
  ++cq.arm_count;
  // seq_cst: visible before the caller's next poll; pairs with announce() and fire_local().
  cq.shared.armed.store(cq.arm_count << 2 | static_cast<uint32_t>(arm), std::memory_order_seq_cst);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (TcpNetwork* tcp = cq.engine.tcp(); tcp != nullptr) {
    tcp->watch_again();
    cq.engine.request_service(Engine::kAtOnce);
  }
  // Its owner is about to sleep: what its send queues have left is the service thread's work.
  for (Qp* qp : cq.senders)
    if (qp->has_work())
      cq.engine.request_service(cq.engine.is_shaped() ? next_look(*qp, Progress::paced)
                                                      : Engine::kAtOnce);
  return 0;
}

bool has_event(Cq& cq) {
  SpinGuard guard(cq.list);
  return has_event_locked(cq);
}

bool take_event(Cq& cq) {
  SpinGuard guard(cq.list);
  if (!has_event_locked(cq)) return false;
  if (std::exchange(cq.event_due, false)) return true;
  cq.shared.armed.store(cq.arm_count << 2, std::memory_order_release);
  return true;
}

void purge(Cq& cq, const Qp& qp) {
  SpinGuard guard(cq.push);
  const auto depth = static_cast<uint64_t>(cq.cqe);
  uint64_t kept = cq.done_head;
  for (uint64_t i = cq.done_head; i != cq.done_tail; ++i)
    if (cq.done[i % depth].qp != &qp) cq.done[kept++ % depth] = cq.done[i % depth];
  cq.done_tail = kept;
  cq.done_count.store(cq.done_tail - cq.done_head, std::memory_order_release);  // with drain()
}

void acknowledge_events(Cq& cq, unsigned count) {
  MutexLock lock(cq.events);
  cq.events_open -= std::min<uint64_t>(count, cq.events_open);
  cq.events_acknowledged.notify_all();
}

bool wait_acknowledged(Cq& cq) {
  const Nanoseconds limit = now_ns() + 10_s;
  MutexLock lock(cq.events);
  while (cq.events_open != 0)
    if (!cq.events_acknowledged.wait_until(cq.events, limit)) return cq.events_open == 0;
  return true;
}

int get_cq_event(Channel& channel, ibv_cq** cq, void** context) {
  while (true) {
    uint64_t count = 0;
    if (::read(channel.fd, &count, sizeof count) != sizeof count) return -1;  // errno says why
    Cq* found = nullptr;
    bool has_more = false;
    channel.engine->for_each_cq([&](Cq& each) {
      if (each.channel != &channel) return;
      if (found == nullptr && take_event(each))
        found = &each;
      else
        has_more = has_more || has_event(each);
    });
    // The next call finds the other one, which may be of the same queue.
    if (has_more || (found != nullptr && has_event(*found))) signal_event(channel.fd);
    if (found == nullptr) continue;  // two had answered the same arming
    {
      MutexLock lock(found->events);
      ++found->events_open;
    }
    *cq = found;
    *context = found->cq_context;
    return 0;
  }
}

}  // namespace noria::soft
