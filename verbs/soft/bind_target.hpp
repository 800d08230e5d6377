// Finding the far end of a connection, and how long to wait for it.
//
// A queue pair binds to one generation of its target: it adopts the target's numbering of receives
// and sets up the ring of notices with it. If the target was reset since, whatever we send is
// dropped, as hardware drops packets with stale sequence numbers, until we are reset as well.
//
// Where the two sides do not agree on the path MTU, only what fits into one packet of both passes.
//
// Threads: under Qp::exec.
#pragma once

#include "verbs/soft/queue_pair.hpp"

namespace noria::soft {

// Whether a queue pair in this state, ibv_qp_state, does.
constexpr bool takes_requests(uint32_t state) {
  return state == IBV_QPS_RTR || state == IBV_QPS_RTS;
}
bool bind_target(Qp& qp);
// Under exec: lets go of the target.
void unbind_target(Qp& qp);
// Whether the target of a queue pair's ring has read all of it, or never will; a fault too.
bool is_drained(Engine& engine, const SharedQp& qp);

// Whether the target takes requests of this queue pair now.
inline bool reach_target(Qp& qp) {
  // acquire: the target's attributes are read after; pairs with its modify_qp().
  return (qp.target != nullptr && qp.target_peer->is_alive() &&
          qp.target->state.load(std::memory_order_acquire) == qp.target_state) ||
         bind_target(qp);
}

// How long a request may go unanswered, and how long without a receive. kNever: for ever.
Nanoseconds ack_limit(const Qp& qp);
Nanoseconds rnr_limit(const Qp& qp);

// The IB code of a minimum RNR timer, 0 to 31.
Nanoseconds rnr_timer_ns(uint32_t code);

}  // namespace noria::soft
