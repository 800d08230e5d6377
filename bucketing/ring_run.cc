#include "bucketing/ring_run.hpp"

#include <cstring>
#include <string>

#include "bucketing/slot_lines.hpp"

namespace noria::bucketing {
namespace {

bool should_stage(const Collective& collective) {
  if (collective.parts.size() != 1 || collective.pending != nullptr || !collective.left.empty())
    return false;
  const Part& part = collective.parts.front();
  return part.in_region == nullptr && part.out_region == nullptr &&
         part.count <= RingRun::kStagedBytes &&  // so that the product cannot overflow
         part.count * dtype_bytes(part.dtype) <= RingRun::kStagedBytes;
}

// The same answer on all ranks.
bool is_free_in_order(const Collective& collective) {
  if (collective.kind != Kind::all_reduce || collective.pending != nullptr ||
      collective.has_single_phase || collective.parts.size() != 1)
    return false;
  const Part& part = collective.parts.front();
  return part.count * dtype_bytes(part.dtype) >= RingRun::kColdBytes;
}

}  // namespace

bool RingRun::begin(RingCore& core, Collective& collective) {
  NORIA_CHECK(!is_active(), "a collective was started before the last one ended");
  place_ = core.place();
  const RingPlace& place = place_;
  ranks_ = place.size;
  steps_ = core.steps();
  pending_ = collective.pending;
  regions_.clear();
  // Regions are pointed at: they must not move.
  regions_.reserve(2 * collective.parts.size());

  const bool is_broadcast = collective.kind == Kind::broadcast;
  const bool is_root = is_broadcast && static_cast<uint32_t>(collective.root) == place.rank;
  const bool is_last = is_broadcast && static_cast<uint32_t>(collective.root) == place.right();

  is_staged_ = should_stage(collective);
  is_plain_ = true;
  lacks_partials_ = false;
  goes_backward_ = false;
  if (is_free_in_order(collective))
    goes_backward_ = std::exchange(is_backwards_turn_, !is_backwards_turn_);
  parts_.clear();  // so that they are made in place
  parts_.resize(collective.parts.size());
  for (size_t i = 0; i < parts_.size(); ++i) {
    Part& part = collective.parts[i];
    part.start_ns = part.wire_ns = 0;
    part.set_end(0);
    if (!collective.left.empty()) parts_[i].left = collective.left[i];
    const bool uses_in = is_broadcast ? is_root : part.phases != Phases::gather;
    // Of a reduce-scatter nothing but the own block is left, and that is not sent.
    const bool uses_out = !is_root && (part.phases != Phases::reduce || part.out_region != nullptr);
    if (!place_part(core, part, uses_in, uses_out, &parts_[i])) return false;
    is_plain_ &= part.phases == Phases::both && part.wide == nullptr;
    lacks_partials_ |= !uses_out && part.phases == Phases::reduce && !is_staged_ && steps_ > 1;
  }
  // Fetch, receive and send each step; or, of a broadcast, receive but on root and send but on the
  // last.
  const uint32_t steps = is_broadcast ? ranks_ * (is_root || is_last ? 1 : 2) : 3 * steps_;
  segments_.assign(collective.segments.size(), {.steps_left = steps});
  for (const Segment& segment : collective.segments) ++parts_[segment.part].segments_left;
  if (collective.has_single_phase)
    for (uint32_t k = 0; k < segments_.size(); ++k)
      segments_[k].slice = collective.segments[k].slice;
  collective_ = &collective;
  if (is_staged_ && (!is_broadcast || is_root)) stage_input(place, is_broadcast);
  return true;
}

void RingRun::stage_input(const RingPlace& place, bool is_whole) {
  const PartRun& part = parts_.front();
  const auto stage = [&](const Piece& some) {
    if (some.bytes != 0) std::memcpy(in(some).data, part.own + some.offset, some.bytes);
  };
  for (uint32_t k = 0; k < segments(); ++k) {
    // Of a reduction only one chunk leaves this rank as it is.
    if (!is_whole) {
      stage(piece(k, place.offered_chunk(0), Phases::reduce));
      continue;
    }
    for (uint32_t chunk = 0; chunk < place.size; ++chunk) stage(piece(k, chunk, Phases::reduce));
  }
}

void RingRun::deliver() {
  const PartRun& run = parts_.front();
  if (!is_staged_ || run.phases == Phases::reduce) return;
  const Part& part = *run.part;
  const uint64_t bytes = part.count * run.element_bytes;
  if (bytes != 0) copy_out_of_slot(part.out, run.out.data, bytes);
}

bool RingRun::place_part(RingCore& core, Part& part, bool uses_in, bool uses_out, PartRun* run) {
  run->part = &part;
  run->element_bytes = dtype_bytes(part.dtype);
  run->own = part.in;
  run->phases = part.phases;
  run->adds_plainly = part.input_divisor == 1 && part.wide == nullptr;
  const uint64_t bytes = part.count * run->element_bytes;
  if (bytes == 0) return true;
  if (is_staged_) {
    run->in = {&staging_, staging_.base() + kHeaderRoom};
    run->out = run->in.at(kStagedBytes);
  } else {
    run->in = {part.in_region, const_cast<std::byte*>(part.in)};
    run->out = {part.out_region, part.out};
  }
  run->result = run->out.data;
  if (part.phases == Phases::reduce && part.out_region == nullptr) {
    run->result = part.out;
    run->result_at = part.edges[place_.rank] * run->element_bytes;
  }
  if (is_staged_) return true;
  if (uses_in && run->in.region == nullptr) {
    run->in.region = register_memory(core, run->in.data, bytes);
    if (run->in.region == nullptr) return false;
  }
  if (uses_out && run->out.region == nullptr) {
    run->out.region = run->out.data == run->in.data && run->in.region != nullptr
                          ? run->in.region
                          : register_memory(core, run->out.data, bytes);
    if (run->out.region == nullptr) return false;
  }
  return true;
}

const transport::Region* RingRun::register_memory(RingCore& core, std::byte* data, uint64_t bytes) {
  auto region = core.domain().register_region(data, bytes);
  if (!region) {
    core.fail({to_noria_status(region.failure().code()),
               "rank " + std::to_string(core.place().rank) + " could not register " +
                   std::to_string(bytes) + " bytes of a collective's buffer with " +
                   core.domain().describe() + ": " + cause_of(region.failure()) +
                   "; raise the limit on locked memory (ulimit -l)"});
    return nullptr;
  }
  regions_.push_back(std::move(region).value());
  return &regions_.back();
}

void RingRun::end() {
  collective_ = nullptr;
  pending_ = nullptr;
  regions_.clear();
}

RemotePart RingRun::own_part() const {
  const PartRun& part = parts_.front();
  RemotePart own;
  if (part.in.region == nullptr) return own;  // no bytes
  own.in_region = part.in.region->remote();
  own.in_offset = part.in.offset();
  own.out_region = part.out.region->remote();
  own.out_offset = part.out.offset();
  return own;
}

RingRun::Piece RingRun::piece(uint32_t segment, uint32_t chunk, Phases phase) const {
  const Segment& whole = segment_at(segment);
  const PartRun& part = parts_[whole.part];
  if (part.phases != Phases::both) return block_piece(whole, chunk, phase);
  const Chunk cut = chunk_of(whole, chunk, ranks_, part.element_bytes);
  return {.part = whole.part,
          .count = cut.count,
          .offset = cut.first * part.element_bytes,
          .bytes = cut.count * part.element_bytes};
}

RingRun::Piece RingRun::block_piece(const Segment& segment, uint32_t chunk, Phases phase) const {
  const PartRun& part = parts_[segment.part];
  if (part.phases != phase) return {.part = segment.part};
  const std::vector<uint64_t>& edges = part.part->edges;
  const uint32_t block = place_.block_of(chunk);
  const Chunk cut = slice_of(segment, edges[block], edges[block + 1], part.element_bytes);
  return {.part = segment.part,
          .count = cut.count,
          .offset = cut.first * part.element_bytes,
          .bytes = cut.count * part.element_bytes};
}

bool RingRun::place_own(const Piece& piece) {
  const PartRun& part = parts_[piece.part];
  if (part.phases != Phases::gather || piece.bytes == 0) return false;
  const uint64_t block_at = part.part->edges[place_.rank] * part.element_bytes;
  const std::byte* from = part.own + (piece.offset - block_at);
  std::byte* to = out(piece).data;
  if (from == to) return false;
  std::memcpy(to, from, piece.bytes);
  return true;
}

void RingRun::add(const Piece& piece, std::byte* to, const std::byte* fetched, uint32_t step) {
  const PartRun& part = parts_[piece.part];
  if (!part.adds_plainly) return add_otherwise(part, piece, to, fetched, step);
  const std::byte* own = part.own + piece.offset;
  if (is_last(step) && part.part->op == NORIA_AVG) {
    add_divide(part.part->dtype, to, fetched, own, piece.count, ranks_);
  } else {
    reduce(part.part->dtype, part.part->op, to, fetched, own, piece.count);
  }
}

void RingRun::add_otherwise(const PartRun& part, const Piece& piece, std::byte* to,
                            const std::byte* fetched, uint32_t step) const {
  const auto before = static_cast<float>(part.part->input_divisor);
  Divisors divisors{.b = before};
  if (is_last(step) && part.part->op == NORIA_AVG)
    divisors.sum = static_cast<float>(ranks_) / before;
  if (part.part->wide == nullptr) {
    // What comes first is an input as it is.
    if (step == 0) divisors.a = before;
    add_scaled(part.part->dtype, to, fetched, part.own + piece.offset, piece.count, divisors);
    return;
  }
  float* const wide = part.part->wide + piece.offset / part.element_bytes;
  add_narrow(part.part->dtype, to, fetched, wide, piece.count, divisors);
  if (is_last(step)) from_narrow(part.part->dtype, wide, to, piece.count);
}

bool RingRun::round_input(uint32_t segment, const Piece& piece) {
  const Part& part = *parts_[piece.part].part;
  if (part.wide == nullptr || segments_[segment].is_rounded) return false;
  segments_[segment].is_rounded = true;
  const PartRun& run = parts_[piece.part];
  to_narrow(part.dtype, in(piece).data, part.wide + piece.offset / run.element_bytes, piece.count,
            static_cast<float>(part.input_divisor));
  return true;
}

bool RingRun::widen_result(const Piece& piece) {
  const PartRun& run = parts_[piece.part];
  float* const wide = run.part->wide;
  if (wide == nullptr) return false;
  from_narrow(run.part->dtype, wide + piece.offset / run.element_bytes, out(piece).data,
              piece.count);
  return true;
}

void RingRun::add_slot(const Piece& piece, std::byte* to, std::byte* slot, uint32_t step) {
  const uint32_t element_bytes = parts_[piece.part].element_bytes;
  read_slot(slot, piece.bytes, [&](uint64_t at, uint64_t bytes) {
    add({.part = piece.part,
         .count = bytes / element_bytes,
         .offset = piece.offset + at,
         .bytes = bytes},
        to + at, slot + at, step);
  });
}

void RingRun::on_started(uint32_t segment) {
  SegmentRun& run = segments_[segment];
  if (run.is_started) return;
  run.is_started = true;
  PartRun& part = parts_[segment_at(segment).part];
  if (part.under_way++ != 0) return;
  part.under_way_since = now_ns();
  if (part.part->start_ns == 0) part.part->start_ns = part.under_way_since;
}

void RingRun::on_done(uint32_t segment) {
  on_started(segment);  // of chunks without bytes nothing may have started
  PartRun& part = parts_[segment_at(segment).part];
  --part.segments_left;
  if (--part.under_way != 0) return;
  const Nanoseconds now = now_ns();
  part.part->wire_ns += now - part.under_way_since;
  if (part.segments_left == 0) part.part->set_end(now);
}

}  // namespace noria::bucketing
