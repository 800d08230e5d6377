// One step of an initiator: a part of the next request takes effect at its target.
//
// Threads: under Qp::exec.
#pragma once

#include "verbs/soft/queue_pair.hpp"

namespace noria::soft {

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

Outcome take_step(Qp& qp, Wqe& wqe);
// The request's bytes are all where they belong: counts them, and tells the target if it is a
// message. Under the mark.
Outcome end_move(Qp& qp, const Wqe& wqe);
// The wait of the next request: goes on, or ends in an error after the time that the connection's
// attributes give it. Mistakes of our own do not wait.
Outcome wait_for(Qp& qp, Wqe& wqe, Wait why);

// Wakes who sleeps at the target for the message that the last step left there, if it left one and
// somebody does. Called once the request is completed here, so that no answer is quicker than that:
// on hardware the acknowledgement leaves before the answer does. On a shaped link with latency both
// become known at one time, and either may be first. After its notice was published with
// seq_cst: either the sleeper's next poll sees the notice, or we see that it armed.
void wake_target(Qp& qp);

}  // namespace noria::soft
