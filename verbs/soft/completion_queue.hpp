// Cq: one completion queue, local to its process; and Channel, on which sleepers wait for it.
//
// Send completions are pushed by whoever executed the request; receive completions are not stored
// at all: poll() scans the peers' notices of each attached queue pair (a load each while nothing
// came). poll() also executes what is left in the send queues that complete here.
//
// An event is never lost between arm and poll: the armed word is published before the caller polls
// again, and an initiator looks at it after it published its notice.
//
// Threads: any thread.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "verbs/soft/placement.hpp"
#include "verbs/soft/shared_layout.hpp"
#include "verbs/soft/spin_lock.hpp"

namespace noria::soft {

class Engine;
struct Qp;

struct Channel : ibv_comp_channel {
  Engine* engine = nullptr;
  uint32_t id = 0;
};

// A finished send request.
struct Done {
  ibv_wc wc;
  Qp* qp;
  uint64_t released;  // the send queue is free up to here once this is polled
};

struct Cq : ibv_cq {
  Cq(Engine& engine, SharedCq& shared, uint32_t index, uint32_t depth, Channel* channel);
  Cq(const Cq&) = delete;
  Cq& operator=(const Cq&) = delete;

  Engine& engine;
  SharedCq& shared;
  const uint32_t index;

  SpinLock list;
  std::vector<Qp*> senders NORIA_GUARDED_BY(list);
  std::vector<Qp*> receivers NORIA_GUARDED_BY(list);
  size_t next_receiver NORIA_GUARDED_BY(list) = 0;
  Coin coin NORIA_GUARDED_BY(list);  // late placement: which queues are served in this poll

  SpinLock push;
  std::unique_ptr<Done[]> done NORIA_GUARDED_BY(push);
  uint64_t done_head NORIA_GUARDED_BY(push) = 0;
  uint64_t done_tail NORIA_GUARDED_BY(push) = 0;
  std::atomic<uint64_t> done_count{0};
  std::atomic<bool> is_overrun{false}, has_told_overrun{false};

  std::atomic<uint32_t> fired{0};  // the armed word that a local completion answered
  uint32_t arm_count NORIA_GUARDED_BY(list) = 0;
  bool event_due NORIA_GUARDED_BY(list) = false;  // of an arming that was replaced since
  uint32_t relayed = 0;  // the armed word for which the channel was woken; service thread
  Mutex events;
  CondVar events_acknowledged;
  uint64_t events_open NORIA_GUARDED_BY(events) = 0;  // taken, not yet acknowledged
};

// relaxed: a hint; an event is decided by what was published in order.
inline bool is_armed(const Cq& cq) {
  return arm_of(cq.shared.armed.load(std::memory_order_relaxed)) != Arm::off;
}

int poll_cq(Cq& cq, int room, ibv_wc* out);
int arm_cq(Cq& cq, bool solicited_only);

// Adds a send completion and wakes the sleeper that waits for it.
void push_completion(Cq& cq, const Done& done);
// A completion came into being here: wakes the channel if the queue is armed for it.
void fire_local(Cq& cq, bool is_solicited);
// Whether an armed queue has got its event; if so, it is disarmed.
bool take_event(Cq& cq);
// Whether an armed queue was answered by somebody.
bool has_event(Cq& cq);
// Forgets completions of a queue pair that goes away.
void purge(Cq& cq, const Qp& qp);

void acknowledge_events(Cq& cq, unsigned count);
// Until every event that was taken is acknowledged; false after ten seconds.
bool wait_acknowledged(Cq& cq);
// More completions than entries: as on hardware, the queue and what uses it are lost.
void on_overrun(Cq& cq);

int get_cq_event(Channel& channel, ibv_cq** cq, void** context);

}  // namespace noria::soft
