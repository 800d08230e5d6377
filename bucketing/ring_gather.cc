#include "bucketing/ring_gather.hpp"

namespace noria::bucketing {

void RingGather::begin(const RingCore& core, const RingRun& run) {
  receiving_ = received_ = sending_ = sent_ = PipelineWalk(run.segments(), core.steps());
}

bool RingGather::advance(RingCore& core, RingRun& run) {
  bool moved = post_receives(core, run);
  uint64_t bytes = 0;
  while (core.take_done(receives_, *core.links.gather_in, &bytes)) {
    const RingRun::Piece piece =
        run.piece(received_.segment(), core.place().received_chunk(received_.step()));
    if (bytes != piece.bytes) {
      core.fail_out_of_step("the next finished chunk");
      return false;
    }
    run.on_gathered(received_.segment());
    received_.next();
    moved = true;
  }
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
    const RingRun::Piece piece =
        run.piece(receiving_.segment(), core.place().received_chunk(receiving_.step()));
    transport::Request* request = nullptr;
    if (piece.bytes != 0) {
      const Place into = run.out(piece);
      request = from.try_recv(*into.region, into.offset(), piece.bytes);
      if (request == nullptr) {
        core.check(from);
        break;
      }
    }
    receives_.push(request);
    receiving_.next();
    moved = true;
  }
  return moved;
}

bool RingGather::post_sends(RingCore& core, RingRun& run) {
  transport::SendConnection& to = *core.links.gather_out;
  bool moved = false;
  while (!sends_.is_full() && !sending_.is_done()) {
    const uint32_t segment = sending_.segment(), step = sending_.step();
    // The own finished chunk first, then what came from the left.
    if (step == 0 ? run.reduced(segment) != core.steps() : run.gathered(segment) < step) break;
    const RingRun::Piece piece = run.piece(segment, core.place().sent_chunk(step));
    transport::Request* request = nullptr;
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
