#include "bucketing/ring_broadcast.hpp"

#include <cstring>

namespace noria::bucketing {

void RingBroadcast::begin(const RingCore& core, const RingRun& run) {
  const auto root = static_cast<uint32_t>(run.collective().root);
  const Walk all{.segments = run.segments(), .chunks = core.place().size};
  is_root_ = root == core.place().rank;
  receiving_ = received_ = is_root_ ? Walk{} : all;
  sending_ = sent_ = root == core.place().right() ? Walk{} : all;
}

bool RingBroadcast::advance(RingCore& core, RingRun& run) {
  bool moved = receive(core, run);
  moved |= send(core, run);
  return moved;
}

bool RingBroadcast::receive(RingCore& core, RingRun& run) {
  transport::RecvConnection& from = *core.links.gather_in;
  bool moved = false;
  while (!receives_.is_full() && !receiving_.is_done()) {
    const RingRun::Piece piece = run.piece(receiving_.segment, receiving_.chunk, Phases::gather);
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
  uint64_t bytes = 0;
  while (core.take_done(receives_, from, &bytes)) {
    if (bytes != run.piece(received_.segment, received_.chunk, Phases::gather).bytes) {
      core.fail_out_of_step("the next chunk of the broadcast");
      return false;
    }
    run.on_started(received_.segment);
    run.on_gathered(received_.segment);
    received_.next();
    moved = true;
  }
  return moved;
}

bool RingBroadcast::send(RingCore& core, RingRun& run) {
  transport::SendConnection& to = *core.links.gather_out;
  bool moved = false, has_copied = false;
  while (!sends_.is_full() && !sending_.is_done() && !has_copied) {
    if (is_root_ ? !run.is_ready(sending_.segment) : !sending_.is_before(received_)) break;
    const RingRun::Piece piece = run.piece(sending_.segment, sending_.chunk, Phases::gather);
    transport::Request* request = nullptr;
    if (piece.bytes != 0) {
      const Place source = is_root_ ? run.in(piece) : run.out(piece);
      request = to.try_send(*source.region, source.offset(), piece.bytes);
      if (request == nullptr) {
        core.check(to);
        break;
      }
      if (is_root_ && run.out(piece).data != source.data) {
        std::memcpy(run.out(piece).data, source.data, piece.bytes);
        has_copied = true;
      }
    }
    run.on_started(sending_.segment);
    sends_.push(request);
    sending_.next();
    moved = true;
  }
  while (core.take_done(sends_, to)) {
    run.on_sent(sent_.segment);
    sent_.next();
    moved = true;
  }
  return moved;
}

}  // namespace noria::bucketing
