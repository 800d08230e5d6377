// Hands: how bytes move to and from a peer whose memory we may not touch, because the kernel
// forbids cross-memory attach (seccomp, Yama, another user namespace) or NORIA_SOFT_COPY says so.
//
// Atomics on memory that we cannot reach with loads and stores always go this way: they are done by
// a processor, on the word itself.
//
// The initiator asks, the target's own hand moves: in its poll_cq, or in its service thread, which
// a doorbell wakes. A question is a slot in the initiator's segment: what to do, and for a write
// the bytes. The target checks it against its own table, copies, and publishes how many questions
// it has answered; for a read the bytes lie in a slot of the target's segment. Each word has one
// writer. Up to kHandSlots questions are under way, so that both sides copy at the same time.
//
// Fence: the target answers under the receive CQ's list lock and looks every key up there. Whoever
// revoked something takes that lock once and knows that no answer touches it any more. A stopped
// target answers later; nothing fails.
//
// Cost: two copies instead of one, and a wake-up where the target sleeps.
//
// Threads: ask(), next_answer() and forget_questions() under Qp::exec.
#pragma once

#include <infiniband/verbs.h>
#include <sys/uio.h>

#include <cstdint>
#include <optional>
#include <span>

#include "verbs/soft/device_copy.hpp"
#include "verbs/soft/memory_table.hpp"
#include "verbs/soft/placement.hpp"
#include "verbs/soft/shared_layout.hpp"

namespace noria::soft {

struct Qp;

// What the initiator of a queue pair remembers of its questions.
struct Asker {
  struct Question {
    Cut cut;           // the part of the request that it is about
    bool is_answered;  // with bytes
  };
  HandSlot* slots = nullptr;
  uint32_t asked = 0, answered = 0;
  Question questions[kHandSlots];
};

// What the target of a queue pair remembers. Guarded by the receive CQ's list lock.
struct Answerer {
  HandSlot* replies = nullptr;
  uint64_t seen = 0;        // the initiator's word that was looked at last
  uint32_t generation = 0;  // of the initiator whose questions these are
  uint32_t answered = 0;
  bool has_refused = false;  // the initiator broke a rule: nothing more is answered
};

struct Answer {
  Cut cut;
  ibv_wc_status status;
  const uint8_t* data;  // of a read or an atomic; valid until the next ask()
};

// Whether a question can be asked now: a slot is free.
bool can_ask(const Qp& qp);
struct Work {
  HandWork kind;
  AtomicOperands operands{};
};
// Asks for `work` on `range`, the part `cut` of the request; `local` holds its bytes if it is a
// write. False: there is no room for slots.
bool ask(Qp& qp, const Cut& cut, const Range& range, const Work& work,
         std::span<const iovec> local);
// The next answer, in the order of the questions.
std::optional<Answer> next_answer(Qp& qp);
// The queue pair starts a new life, and its questions are numbered anew.
void forget_questions(Qp& qp);

// The right that such work needs where it is done.
uint32_t needed_access(HandWork work);

// What the hand of a target does: checks it against its own table, and does it. `data` is what
// comes with a write, `reply` has room for what a read or an atomic brings, or is null: then it
// fails. The status that the initiator gets. Under the receive CQ's list lock: keys are looked up
// here, so that what was revoked before is not touched.
struct Order {
  HandWork work;
  uint32_t access;  // that the initiator wants: a SEND has the receive's key, and LOCAL_WRITE
  uint32_t key;
  uint64_t iova, bytes;
  AtomicOperands operands;
};
ibv_wc_status carry_out(Qp& qp, const Order& order, const uint8_t* data, uint8_t* reply);

// Answers what the peer of this queue pair asks. Under the receive CQ's list lock.
void answer_questions(Qp& qp);

}  // namespace noria::soft
