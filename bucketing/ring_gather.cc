#include "bucketing/ring_gather.hpp"

#include "bucketing/slot_lines.hpp"

namespace noria::bucketing {

void RingGather::begin(const RingCore& core, const RingRun& run) {
  receiving_ = received_ = sending_ = sent_ = PipelineWalk(run.segments(), core.steps());
  placed_ = 0;
  uses_slots_ = slots_.is_valid() && run.has_registered_memory();
}

bool RingGather::advance(RingCore& core, RingRun& run) {
  bool moved = post_receives(core, run);
  moved |= take_received(core, run);
  moved |= post_sends(core, run);
  while (core.take_done(sends_, *core.links.gather_out)) {
    run.on_sent(sent_.segment());
    sent_.next();
    moved = true;
  }
  return moved;
}

bool RingGather::post_receives(RingCore& core, RingRun& run) {
  transport::RecvConnection& from = *core.links.gather_in;
  bool moved = false;
  while (!receives_.is_full() && !receiving_.is_done()) {
    const RingRun::Piece piece = run.piece(
        receiving_.segment(), core.place().received_chunk(receiving_.step()), Phases::gather);
    transport::Request* request = nullptr;
    if (piece.bytes != 0) {
      if (uses_slots_) {
        if (slots_taken_ == kSlots) break;
        request = from.try_recv(slots_, receive_slot_ * kChunkBytes, piece.bytes);
      } else {
        const Place into = run.out(piece);
        request = from.try_recv(*into.region, into.offset(), piece.bytes);
      }
      if (request == nullptr) {
        core.check(from);
        break;
      }
      if (uses_slots_) {
        ++slots_taken_;
        if (++receive_slot_ == kSlots) receive_slot_ = 0;
      }
    }
    receives_.push(request);
    receiving_.next();
    moved = true;
  }
  return moved;
}

bool RingGather::take_received(RingCore& core, RingRun& run) {
  bool moved = false, has_copied = false;
  uint64_t bytes = 0;
  while (!has_copied && core.take_done(receives_, *core.links.gather_in, &bytes)) {
    const RingRun::Piece piece = run.piece(
        received_.segment(), core.place().received_chunk(received_.step()), Phases::gather);
    if (bytes != piece.bytes) {
      core.fail_out_of_step("the next finished chunk");
      return false;
    }
    if (uses_slots_ && bytes != 0) {
      copy_out_of_slot(run.out(piece).data, slots_.base() + copy_slot_ * kChunkBytes, bytes,
                       run.is_cold(piece) ? kColdBlockBytes : kSlotBlockBytes);
      has_copied = true;
      --slots_taken_;
      if (++copy_slot_ == kSlots) copy_slot_ = 0;
    }
    if (!run.is_plain()) has_copied |= run.widen_result(piece);
    run.on_gathered(received_.segment());
    received_.next();
    moved = true;
  }
  return moved;
}

bool RingGather::post_sends(RingCore& core, RingRun& run) {
  transport::SendConnection& to = *core.links.gather_out;
  bool moved = false, has_copied = false;
  while (!sends_.is_full() && !sending_.is_done() && !has_copied) {
    const uint32_t segment = sending_.segment(), step = sending_.step();
    // The own finished chunk first, then what came from the left.
    if (step == 0 ? run.reduced(segment) != core.steps() : run.gathered(segment) < step) break;
    const RingRun::Piece piece = run.piece(segment, core.place().sent_chunk(step), Phases::gather);
    transport::Request* request = nullptr;
    if (!run.is_plain() && step == 0 && sending_.index() >= placed_) {
      has_copied = run.place_own(piece);
      placed_ = sending_.index() + 1;
    }
    if (piece.bytes != 0) {
      const Place from = run.out(piece);
      request = to.try_send(*from.region, from.offset(), piece.bytes);
      if (request == nullptr) {
        core.check(to);
        break;
      }
    }
    sends_.push(request);
    sending_.next();
    moved = true;
  }
  return moved;
}

}  // namespace noria::bucketing
