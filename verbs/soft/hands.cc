#include "verbs/soft/hands.hpp"

#include <cstring>

#include "base/log.hpp"
#include "verbs/soft/device_copy.hpp"
#include "verbs/soft/engine.hpp"
#include "verbs/soft/queue_pair.hpp"

namespace noria::soft {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;
constexpr uint64_t kSlotsBytes = kHandSlots * sizeof(HandSlot);

// Where a peer's word says that its slots are, or null if they cannot be there.
const HandSlot* slots_of(const Peer& peer, uint64_t offset) {
  if (offset > kRingArenaBytes - kSlotsBytes || offset % alignof(HandSlot) != 0) return nullptr;
  return reinterpret_cast<const HandSlot*>(peer.shared().rings + offset);
}

// Our own slots. They belong to the index of the queue pair, not to the object: a peer may still
// read what was asked by one that was destroyed. `where` says where they are, plus one.
HandSlot* own_slots(Engine& engine, Word64& where) {
  uint64_t offset = where.load(kRelaxed);
  if (offset == 0) {
    const uint64_t carved = engine.carve(kSlotsBytes);
    if (carved == Segment::kNoRoom) {
      log(LogLevel::error, "software HCA: no room left to copy through; close queue pairs");
      return nullptr;
    }
    offset = carved + 1;
    where.store(offset, kRelaxed);  // ordered by the word that counts
  }
  return reinterpret_cast<HandSlot*>(engine.shared().rings + offset - 1);
}

// What a peer wrote there: its bytes lie in the slot, however many it says.
Order order_of(const HandSlot& question) {
  return {static_cast<HandWork>(question.work.load(kRelaxed)),
          question.access.load(kRelaxed),
          question.key.load(kRelaxed),
          question.iova.load(kRelaxed),
          question.bytes.load(kRelaxed),
          {question.compare_add.load(kRelaxed), question.swap.load(kRelaxed)}};
}

// Answers up to question number `asked`. Returns how many it answered.
uint32_t answer_up_to(Qp& qp, uint32_t asked, const HandSlot* questions) {
  Answerer& a = qp.answerer;
  const uint32_t before = a.answered;
  while (a.answered != asked && !a.has_refused) {
    const uint32_t slot = a.answered % kHandSlots;
    const HandSlot& question = questions[slot];
    // Asked of an earlier life of this queue pair: nobody waits for the answer.
    if (question.target_generation.load(kRelaxed) != qp.generation) break;
    const Order order = order_of(question);
    const bool replies = order.work != HandWork::write;
    if (replies && a.replies == nullptr) a.replies = own_slots(qp.engine, qp.shared.hand_replies);
    const ibv_wc_status status =
        order.bytes > kHandBytes
            ? IBV_WC_REM_INV_REQ_ERR
            : carry_out(qp, order, question.data,
                        replies && a.replies != nullptr ? a.replies[slot].data : nullptr);
    a.has_refused = status != IBV_WC_SUCCESS;
    ++a.answered;
    // release: our copy comes before; pairs with next_answer().
    qp.shared.hand_done.store(make_answered(a.generation, a.answered, status),
                              std::memory_order_release);
  }
  return a.answered - before;
}

}  // namespace

uint32_t needed_access(HandWork work) {
  if (work == HandWork::write) return IBV_ACCESS_REMOTE_WRITE;
  return work == HandWork::read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_ATOMIC;
}

ibv_wc_status carry_out(Qp& qp, const Order& order, const uint8_t* data, uint8_t* reply) {
  const HandWork work = order.work;
  const bool is_send = work == HandWork::write && order.access == IBV_ACCESS_LOCAL_WRITE;
  const bool is_atomic = work != HandWork::write && work != HandWork::read;
  if (work != HandWork::write && reply == nullptr) return IBV_WC_REM_OP_ERR;
  // What the initiator wants is its word; what that needs is ours.
  const uint32_t needed = needed_access(work);
  if (is_atomic && order.bytes != kAtomicBytes) return IBV_WC_REM_INV_REQ_ERR;
  if (!is_send && (order.access != needed || (qp.shared.access.load(kRelaxed) & needed) == 0))
    return IBV_WC_REM_ACCESS_ERR;
  const auto range = find_range(qp.engine.shared(), order.key, qp.pd_number, order.access,
                                order.iova, order.bytes);
  if (!range) return IBV_WC_REM_ACCESS_ERR;
  auto* memory = reinterpret_cast<uint8_t*>(range->address);
  PostedWrites& posted = qp.engine.posted_writes();
  const uint32_t device = device_of(qp.pd_number);
  if (range->is_posted != 0 && work != HandWork::write) posted.publish(device);
  if (is_atomic) {
    if (range->address % kAtomicBytes != 0) return IBV_WC_REM_OP_ERR;
    const uint64_t before = device_atomic(memory, work == HandWork::compare_swap, order.operands);
    std::memcpy(reply, &before, sizeof before);
  } else if (work == HandWork::read) {
    device_copy(reply, memory, order.bytes);
  } else if (range->is_posted != 0) {
    posted.add(device, memory, data, order.bytes);
  } else {
    device_copy(memory, data, order.bytes);
  }
  return IBV_WC_SUCCESS;
}

bool can_ask(const Qp& qp) { return qp.asker.asked - qp.asker.answered < kHandSlots; }

bool ask(Qp& qp, const Cut& cut, const Range& range, const Work& work,
         std::span<const iovec> local) {
  Asker& asker = qp.asker;
  if (asker.slots == nullptr) asker.slots = own_slots(qp.engine, qp.shared.hand_questions);
  if (asker.slots == nullptr) return false;
  const uint32_t number = asker.asked % kHandSlots;
  HandSlot& slot = asker.slots[number];
  slot.iova.store(range.iova, kRelaxed);
  slot.key.store(range.key, kRelaxed);
  slot.access.store(range.access, kRelaxed);
  slot.bytes.store(static_cast<uint32_t>(cut.bytes), kRelaxed);
  slot.work.store(static_cast<uint32_t>(work.kind), kRelaxed);
  slot.compare_add.store(work.operands.compare_add, kRelaxed);
  slot.swap.store(work.operands.swap, kRelaxed);
  slot.target_generation.store(generation_of(qp.target_state), kRelaxed);
  uint8_t* to = slot.data;
  for (const iovec& piece : local) {
    device_copy(to, piece.iov_base, piece.iov_len);
    to += piece.iov_len;
  }
  asker.questions[number] = {cut, work.kind != HandWork::write};
  ++asker.asked;
  // release: publishes the slot; pairs with answer_questions().
  qp.shared.hand_asked.store(make_asked(qp.generation, asker.asked), std::memory_order_release);
  qp.target_peer->wake();
  return true;
}

std::optional<Answer> next_answer(Qp& qp) {
  Asker& asker = qp.asker;
  if (asker.answered == asker.asked) return std::nullopt;
  // acquire: pairs with answer_up_to().
  const uint64_t word = qp.target->hand_done.load(std::memory_order_acquire);
  if (hand_generation(word) != (qp.generation & kHandGenerationMask)) return std::nullopt;
  // Counts are near each other: their difference is right also where they wrap.
  const auto ready = static_cast<int32_t>(hand_count(word) - asker.answered);
  if (ready <= 0) return std::nullopt;
  const uint32_t number = asker.answered++ % kHandSlots;
  const Asker::Question& question = asker.questions[number];
  // A refusal is about the last question that was answered, and nothing is answered after it.
  Answer answer{question.cut, IBV_WC_SUCCESS, nullptr};
  if (ready == 1) answer.status = static_cast<ibv_wc_status>(hand_status(word));
  if (!question.is_answered || answer.status != IBV_WC_SUCCESS) return answer;
  const uint64_t where = qp.target->hand_replies.load(kRelaxed);
  const HandSlot* replies = where != 0 ? slots_of(*qp.target_peer, where - 1) : nullptr;
  if (replies == nullptr)
    answer.status = IBV_WC_REM_OP_ERR;
  else
    answer.data = replies[number].data;
  return answer;
}

void forget_questions(Qp& qp) {
  qp.asked = 0;
  qp.tcp_ask.forget();
  qp.asker.asked = qp.asker.answered = 0;  // the words carry the generation, so old ones differ
}

void answer_questions(Qp& qp) {
  Answerer& a = qp.answerer;
  // acquire: pairs with modify_qp(). Whoever leaves these states takes our lock afterwards.
  const uint32_t state = qp.current.load(std::memory_order_acquire);
  if ((state != IBV_QPS_RTR && state != IBV_QPS_RTS) || !is_source_bound(qp)) return;
  const SharedQp& initiator = *qp.source;
  const uint64_t word = initiator.hand_asked.load(std::memory_order_acquire);  // with ask()
  if (word == a.seen) return;
  if (a.generation != hand_generation(word)) {
    a.generation = hand_generation(word);
    a.answered = 0;
    a.has_refused = false;
  }
  const uint64_t where = initiator.hand_questions.load(kRelaxed);
  const HandSlot* questions = where != 0 ? slots_of(*qp.source_peer, where - 1) : nullptr;
  if (questions == nullptr) return;
  a.seen = word;
  if (hand_count(word) - a.answered > kHandSlots) return;  // more than there can be: not of ours
  if (answer_up_to(qp, hand_count(word), questions) > 0) qp.source_peer->wake();
}

}  // namespace noria::soft
