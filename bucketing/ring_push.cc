#include "bucketing/ring_push.hpp"

namespace noria::bucketing {

void RingPush::begin(const RingCore& core, const RingRun& run) {
  sent_ = added_ = PipelineWalk(run.segments(), core.steps());
}

bool RingPush::advance(RingCore& core, RingRun& run, RingInbox& inbox, RingOutbox& outbox) {
  bool moved = send_chunks(core, run, outbox);
  moved |= add_oldest(core, run, inbox);
  return moved;
}

bool RingPush::send_chunks(RingCore& core, RingRun& run, RingOutbox& outbox) {
  const uint32_t ahead = stays_close_ ? 2 : kInboxSlots;
  bool moved = false;
  while (!sent_.is_done() && sent_.index() < added_.index() + ahead) {
    const uint32_t segment = sent_.segment(), step = sent_.step();
    // What is sent for a step is what the step before left.
    if (step == 0 ? !run.is_ready(segment) : run.reduced(segment) < step) break;
    const RingRun::Piece piece = run.piece(segment, core.place().offered_chunk(step));
    if (piece.bytes != 0) {
      const Place from = step == 0 ? run.in(piece) : run.out(piece);
      if (!outbox.send_chunk(core, from, piece.bytes)) break;
    }
    run.on_started(segment);
    sent_.next();
    moved = true;
  }
  return moved;
}

bool RingPush::add_oldest(RingCore& core, RingRun& run, RingInbox& inbox) {
  if (added_.is_done()) return false;
  const uint32_t segment = added_.segment(), step = added_.step();
  if (step == 0 && !run.is_ready(segment)) return false;
  const RingRun::Piece piece = run.piece(segment, core.place().fetched_chunk(step));
  if (piece.bytes != 0) {
    const RingInbox::Message message = inbox.peek(core);
    if (message.data == nullptr) return false;
    if (message.bytes != piece.bytes) {
      core.fail_out_of_step("the next chunk");
      return false;
    }
    const bool is_last_step = step + 1 == core.steps();
    stays_close_ ? run.add_slot(piece, message.data, is_last_step)
                 : run.add(piece, message.data, is_last_step);
    inbox.take(core);
  }
  run.on_started(segment);
  run.on_reduced(segment);
  added_.next();
  return true;
}

}  // namespace noria::bucketing
