#include "bucketing/ring_push.hpp"

namespace noria::bucketing {

bool RingPush::begin(RingCore& core, const RingRun& run) {
  if (!run.lacks_partials()) {
    sent_ = added_ = PipelineWalk(run.segments(), core.steps());
    return true;
  }
  sent_ = added_ = PipelineWalk::in_groups(run.segments(), core.steps(), RingPartials::kGroup);
  return partials_.begin(core);
}

bool RingPush::advance(RingCore& core, RingRun& run, RingInbox& inbox, RingOutbox& outbox) {
  bool moved = send_chunks(core, run, outbox);
  moved |= add_oldest(core, run, inbox, outbox);
  return moved;
}

bool RingPush::send_chunks(RingCore& core, RingRun& run, RingOutbox& outbox) {
  const uint32_t ahead = stays_close_ ? 2 : kInboxSlots;
  bool moved = false;
  while (!sent_.is_done() && sent_.index() < added_.index() + ahead) {
    const uint32_t segment = sent_.segment(), step = sent_.step();
    // What is sent for a step is what the step before left.
    if (step == 0 ? !run.is_ready(segment) : run.reduced(segment) < step) break;
    const RingRun::Piece piece =
        run.piece(segment, core.place().offered_chunk(step), Phases::reduce);
    if (piece.bytes != 0) {
      if (step == 0) run.round_input(segment, piece);
      const bool is_partial = step != 0 && run.lacks_partials();
      const Place from = is_partial  ? partials_.next_to_send()
                         : step == 0 ? run.in(piece)
                                     : run.out(piece);
      if (!outbox.send_chunk(core, from, piece.bytes)) break;
      if (is_partial) partials_.on_sent(outbox);
    }
    run.on_started(segment);
    sent_.next();
    moved = true;
  }
  return moved;
}

bool RingPush::add_oldest(RingCore& core, RingRun& run, RingInbox& inbox, RingOutbox& outbox) {
  bool moved = false;
  while (!added_.is_done()) {
    const uint32_t segment = added_.segment(), step = added_.step();
    if (step == 0 && !run.is_ready(segment)) break;
    const RingRun::Piece piece =
        run.piece(segment, core.place().fetched_chunk(step), Phases::reduce);
    const bool has_added = piece.bytes != 0;
    if (has_added && !add(core, run, inbox, outbox, piece)) break;
    run.on_started(segment);
    run.on_reduced(segment);
    added_.next();
    moved = true;
    if (has_added) break;
  }
  return moved;
}

bool RingPush::add(RingCore& core, RingRun& run, RingInbox& inbox, const RingOutbox& outbox,
                   const RingRun::Piece& piece) {
  const RingInbox::Message message = inbox.peek(core);
  if (message.data == nullptr) return false;
  if (message.bytes != piece.bytes) {
    core.fail_out_of_step("the next chunk");
    return false;
  }
  const uint32_t step = added_.step();
  const bool is_partial = !run.is_last(step) && run.lacks_partials();
  std::byte* const to = is_partial ? partials_.next_free(outbox) : run.sum(piece, step);
  if (to == nullptr) return false;
  stays_close_ ? run.add_slot(piece, to, message.data, step)
               : run.add(piece, to, message.data, step);
  if (is_partial) partials_.on_added();
  inbox.take(core);
  return true;
}

}  // namespace noria::bucketing
