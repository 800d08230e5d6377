#include "bucketing/ring_inbox.hpp"

namespace noria::bucketing {

void RingInbox::offer(RingCore& core) {
  transport::RecvConnection& from = *core.links.reduce_in;
  while (offered_.size() < slots_) {
    transport::Request* request = from.try_recv(memory_, next_slot_ * slot_bytes_, slot_bytes_);
    if (request == nullptr) return;  // not yet; or the neighbour left, and is needed or not
    offered_.push(request);
    if (++next_slot_ == slots_) next_slot_ = 0;
  }
}

RingInbox::Message RingInbox::peek(RingCore& core) {
  if (front_.data != nullptr) return front_;
  if (offered_.size() < slots_) offer(core);  // the last offer may have been *not yet*
  uint64_t bytes = 0;
  if (core.take_done(offered_, *core.links.reduce_in, &bytes))
    front_ = {memory_.base() + oldest_slot_ * slot_bytes_, bytes};
  return front_;
}

void RingInbox::take(RingCore& core) {
  NORIA_DCHECK(front_.data != nullptr, "no message was looked at");
  front_ = {};
  if (++oldest_slot_ == slots_) oldest_slot_ = 0;
  offer(core);
}

}  // namespace noria::bucketing
