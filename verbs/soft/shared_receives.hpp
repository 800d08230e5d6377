// Srq: a shared receive queue. Its receives belong to no queue pair until a message of that queue
// pair is there to take one.
//
// Initiators read receives out of the receive queue of the queue pair that they talk to; of a
// shared one there is only one, and many who would take from it. So its owner hands them out: an
// initiator with messages and no receive says up to which number it wants some (receives_wanted),
// and wakes us; supply() moves as many into the queue pair's own receive queue and says up to which
// number it has looked (supply_seen). What is handed out has a message that waits for it, so that
// no receive lies idle at one queue pair while another starves. Receiver-not-ready counts from the
// moment that we had none to give.
//
// A message to a shared queue costs a question to its owner: nothing where the owner polls, a
// wake-up of its service thread where it does not.
//
// Locks, in order: Srq::users, Cq::list, Qp::receive, Srq::lock.
//
// Threads: any thread.
#pragma once

#include <infiniband/verbs.h>

#include <atomic>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "verbs/soft/shared_layout.hpp"
#include "verbs/soft/spin_lock.hpp"

namespace noria::soft {

struct Qp;

struct Srq : ibv_srq {
  // `attr` is within the limits of the device.
  Srq(ibv_pd* pd, const ibv_srq_init_attr& init);
  Srq(const Srq&) = delete;
  Srq& operator=(const Srq&) = delete;

  const uint32_t max_wr, max_sge;

  struct Receive {
    uint64_t id;
    uint32_t sge_count;
  };
  SpinLock lock;
  std::unique_ptr<Receive[]> receives NORIA_GUARDED_BY(lock);
  std::unique_ptr<ibv_sge[]> sges NORIA_GUARDED_BY(lock);  // max_sge for each
  // Posted and not yet given to a queue pair: from head to tail, modulo the depth.
  uint64_t head NORIA_GUARDED_BY(lock), tail NORIA_GUARDED_BY(lock);
  uint32_t given NORIA_GUARDED_BY(lock) = 0;  // to queue pairs, and not yet completed
  uint32_t limit NORIA_GUARDED_BY(lock) = 0;  // an event when fewer are left; 0: none
  std::atomic<bool> is_short{false};          // somebody was told that there is none

  Mutex users;
  std::vector<Qp*> qps NORIA_GUARDED_BY(users);
};

int post_srq_recv(Srq& srq, ibv_recv_wr* first, ibv_recv_wr** bad);
int modify_srq(Srq& srq, const ibv_srq_attr& attr, int mask);
void query_srq(Srq& srq, ibv_srq_attr* attr);

// Gives a queue pair the receives that its peer's messages wait for. Under the receive CQ's list
// lock; does nothing for a queue pair with receives of its own.
void supply(Qp& qp);
// Takes back what the queue pair has not used: it takes no more messages. Under the same lock.
void take_back(Qp& qp);
// `count` receives of the queue pair have become completions. Under the same lock.
void use_up(Qp& qp, uint64_t count);

}  // namespace noria::soft
