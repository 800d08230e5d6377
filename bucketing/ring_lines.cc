#include "bucketing/ring_lines.hpp"

#include <algorithm>

#include "base/relax.hpp"
#include "bucketing/kernels.hpp"
#include "bucketing/ring_mismatch.hpp"
#include "bucketing/ring_wire.hpp"

namespace noria::bucketing {
namespace {

// Looks at the slot before the caller sees to everything else: a neighbour that is called at the
// same time answers within them.
constexpr int kLooks = 32;

// A rank that has waited for less than this does not sleep: half of what a driver looks on for, as
// it began to wait when this rank's last line landed, which was a moment after it was sent.
constexpr Nanoseconds kAwake = kLooksOn / 2;

}  // namespace

bool RingLines::fit(const Collective& collective) {
  if (collective.kind == Kind::barrier) return true;
  return collective.parts.size() == 1 && collective.pending == nullptr && collective.left.empty() &&
         fits_line(collective.kind, &collective.parts.front());
}

void RingLines::begin(const Collective& collective, uint64_t sequence) {
  collective_ = &collective;
  sequence_ = sequence;
  taken_ = sent_ = 0;
  own_.set_number(own_.number + 1);
  own_.sequence = static_cast<uint32_t>(sequence);
  own_.call = {.kind = collective.kind};
  if (collective.kind == Kind::barrier) return;
  const Part& part = collective.parts.front();
  own_.call.dtype = static_cast<uint8_t>(part.dtype);
  own_.call.op = static_cast<uint8_t>(part.op);
  own_.call.count = static_cast<uint8_t>(part.count);
  own_.put(part.in, part.count * dtype_bytes(part.dtype));
}

bool RingLines::advance(RingCore& core, RingOutbox& outbox) {
  bool moved = send(core, outbox);
  for (int look = 0; taken_ != hops_ && look < kLooks && !core.has_failed(); ++look) {
    if (take_next(core)) {
      moved = true;
      send(core, outbox);
    } else {
      relax();
    }
  }
  has_waited_ = taken_ != hops_;
  return moved;
}

// The own line, then what came, as it came.
bool RingLines::send(RingCore& core, RingOutbox& outbox) {
  bool moved = false;
  while (sent_ != hops_ && taken_ >= sent_) {
    const RingLine& line = sent_ == 0 ? own_ : slot(own_.number, sent_ - 1);
    const uint64_t offset = (offset_of(own_.number) + sent_) * sizeof line;
    if (!core.links.reduce_out->try_write_line(right_, offset, &line)) {
      core.check(*core.links.reduce_out);
      break;
    }
    if (sent_ == 0 || has_waited_) {
      const Nanoseconds now = now_ns();
      if (now - sent_at_ > kAwake) wake_right(core, outbox);
      sent_at_ = now;
      has_waited_ = false;
    }
    ++sent_;
    moved = true;
  }
  return moved;
}

// Without room for the message the neighbour has not taken those before: it does not look, and
// before it sleeps it will. Those that are through make room here.
void RingLines::wake_right(RingCore& core, RingOutbox& outbox) {
  core.domain().poll();
  outbox.collect(core);
  const RingWake wake;
  outbox.send_small(core, &wake, sizeof wake);
}

bool RingLines::take_next(RingCore& core) {
  RingLine& line = slot(own_.number, taken_);
  if (!line.has_landed(own_.number)) return false;
  if (line.sequence != own_.sequence || line.call != own_.call) [[unlikely]] {
    fail_differing(core, line);
    return false;
  }
  ++taken_;
  return true;
}

void RingLines::fail_differing(RingCore& core, const RingLine& line) const {
  if (line.sequence != own_.sequence || line.call == own_.call)
    return core.fail_out_of_step("the line of this collective");
  core.fail(calls_differ(core.place(), core.number_of(sequence_), header_of(line.call),
                         header_of(own_.call)));
}

void RingLines::deliver(const RingCore& core) {
  if (own_.call.count == 0) return;
  const RingPlace& place = core.place();
  const Part& part = collective_->parts.front();
  const uint64_t bytes = part.count * dtype_bytes(part.dtype);
  const auto line_of = [&](uint32_t rank) -> const RingLine& {
    if (rank == place.rank) return own_;
    const uint32_t behind = place.rank > rank ? place.rank - rank : place.rank + place.size - rank;
    return slot(own_.number, behind - 1);
  };
  alignas(8) std::byte sum[RingLine::kMostBytes];
  const LineNumbers start(line_of(0), bytes);
  const std::byte* before = start.data();
  for (uint32_t rank = 1; rank < place.size; ++rank) {
    const LineNumbers input(line_of(rank), bytes);
    const bool is_last = rank + 1 == place.size;
    std::byte* const to = is_last ? part.out : sum;
    if (is_last && part.op == NORIA_AVG)
      add_divide(part.dtype, to, before, input.data(), part.count, place.size);
    else
      reduce(part.dtype, part.op, to, before, input.data(), part.count);
    before = to;
  }
}

const LineCall* RingLines::heard_of(uint64_t sequence) const {
  const uint32_t next = own_.number + 1;
  RingLine& line = slot(next, 0);
  return line.has_landed(next) && line.sequence == static_cast<uint32_t>(sequence) ? &line.call
                                                                                   : nullptr;
}

}  // namespace noria::bucketing
