// A batch: requests at the head of a send queue that one call of the kernel moves.
//
// A call of cross-memory attach costs as much as the copy of some KiB, however many pieces it
// takes. So requests that stand one behind the other and move bytes the same way by attach go in
// one: a post list, or what queued up behind others. Writes, with immediate too, and reads; at most
// kStepBytes together, so that a fence waits no longer than for one large request.
//
// The kernel moves the pieces in order and stops at the first that fails. What is through then has
// taken effect; what is not is left to take_step(), which says what is wrong with it.
//
// Only where requests take effect at once and in full: not on a shaped link, not with late
// placement, not where faults are set.
//
// Threads: under Qp::exec.
#pragma once

#include "verbs/soft/queue_pair.hpp"

namespace noria::soft {

// Moves requests from Qp::executed on, up to number `end`. How many took effect; none where fewer
// than two can go together.
uint64_t move_batch(Qp& qp, uint64_t end);

}  // namespace noria::soft
