#include "bucketing/ring_pull.hpp"

#include <cstring>

namespace noria::bucketing {

void RingPull::begin(const RingCore& core, const RingRun& run) {
  const PipelineWalk walk(run.segments(), core.steps());
  issued_ = added_ = offered_ = walk;
  left_ready_ = noticed_ = 0;
  left_all_ready_ = is_worth_saying_ = false;
  // The header says that items of step 0 are ready, and with two ranks there are no others.
  needs_notices_ = !(run.all_ready() && core.steps() == 1);
}

bool RingPull::advance(RingCore& core, RingRun& run, RingInbox& inbox, RingOutbox& outbox) {
  bool moved = take_notices(core, inbox);
  moved |= issue_reads(core, run);
  // The software HCA moves bytes when a read is posted, so it may be here already.
  if (moved) core.domain().poll();
  moved |= add_oldest(core, run);
  moved |= send_notice(core, run, outbox);
  return moved;
}

bool RingPull::take_notices(RingCore& core, RingInbox& inbox) {
  bool moved = false;
  // Past the last notice comes the next collective's header, which stays for later.
  while (left_ready_ != issued_.total() && left_notifies_) {
    const RingInbox::Message message = inbox.peek(core);
    if (message.data == nullptr) break;
    RingNotice notice;
    if (message.bytes != sizeof notice ||
        (std::memcpy(&notice, message.data, sizeof notice), notice.type != RingMessage::notice) ||
        notice.ready <= left_ready_ || notice.ready > issued_.total()) {
      core.fail_out_of_step("a notice");
      break;
    }
    left_ready_ = notice.ready;
    inbox.take(core);
    moved = true;
  }
  return moved;
}

bool RingPull::issue_reads(RingCore& core, RingRun& run) {
  transport::RecvConnection& from = *core.links.reduce_in;
  bool moved = false;
  while (reads_.size() < kAhead && !issued_.is_done() && left_is_ready()) {
    const uint32_t segment = issued_.segment(), step = issued_.step();
    // Not before the addend is there too: what is fetched early would be cold when it is added.
    if (step == 0 && !run.is_ready(segment)) break;
    const RingRun::Piece piece =
        run.piece(segment, core.place().fetched_chunk(step), Phases::reduce);
    transport::Request* request = nullptr;
    if (piece.bytes != 0) {
      const RemotePart& left = run.left(piece);
      request = step == 0 ? from.try_read(scratch_, issue_block_ * kChunkBytes, left.in_region,
                                          left.in_offset + piece.offset, piece.bytes)
                          : from.try_read(scratch_, issue_block_ * kChunkBytes, left.out_region,
                                          left.out_offset + piece.offset, piece.bytes);
      if (request == nullptr) {
        core.check(from);
        break;
      }
    }
    run.on_started(segment);
    reads_.push(request);
    if (++issue_block_ == kAhead) issue_block_ = 0;
    issued_.next();
    moved = true;
  }
  return moved;
}

bool RingPull::add_oldest(RingCore& core, RingRun& run) {
  if (!core.take_done(reads_, *core.links.reduce_in)) return false;
  const uint32_t segment = added_.segment(), step = added_.step();
  const RingRun::Piece piece = run.piece(segment, core.place().fetched_chunk(step), Phases::reduce);
  run.add(piece, run.sum(piece, step), scratch_.base() + add_block_ * kChunkBytes, step);
  run.on_reduced(segment);
  if (++add_block_ == kAhead) add_block_ = 0;
  added_.next();
  return true;
}

bool RingPull::send_notice(RingCore& core, RingRun& run, RingOutbox& outbox) {
  if (!has_notice_to_send()) return false;
  bool has_rounded = false;
  while (!offered_.is_done() && !has_rounded) {
    const uint32_t segment = offered_.segment(), step = offered_.step();
    // What is offered for a step is what the step before left.
    if (step == 0 ? !run.is_ready(segment) : run.reduced(segment) < step) break;
    if (step == 0)
      has_rounded = run.round_input(
          segment, run.piece(segment, core.place().offered_chunk(0), Phases::reduce));
    // The header spoke for step 0 if all is ready.
    is_worth_saying_ |= step != 0 || !run.all_ready();
    offered_.next();
  }
  const RingNotice notice{.ready = offered_.index()};
  if (!is_worth_saying_ || !outbox.send_small(core, &notice, sizeof notice)) return false;
  noticed_ = notice.ready;
  is_worth_saying_ = false;
  return true;
}

}  // namespace noria::bucketing
