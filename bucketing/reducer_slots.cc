// Copies of fewer buckets at once than there are: what comes early stays with the caller until a
// slot is free.
//
// Whoever gives a gradient sees to buckets that have ended meanwhile, and step_end() to the rest:
// copies the result out, and what waited for the slot in. None of noria's own threads touches the
// caller's memory.
#include <algorithm>
#include <cstring>
#include <memory>
#include <vector>

#include "bucketing/kernels.hpp"
#include "bucketing/reducer.hpp"

namespace noria::bucketing {

// Null where every bucket had a slot of its own, or slots would take more than the buckets do. One
// rank has its results before anything ends.
std::unique_ptr<BucketSlots> Reducer::slots_for(const Plan& plan) const {
  if (config_.max_in_flight == 0 || host_.size == 1 || is_on_device()) return nullptr;
  const auto ranks = static_cast<uint32_t>(host_.size);
  std::vector<uint32_t> segments;
  for (const Bucket& bucket : plan.buckets) {
    const bool is_narrow = travels_narrow() && bucket.dtype == NORIA_FLOAT32;
    const PartShape shape{
        .count = bucket.numel,
        .element_bytes = dtype_bytes(is_narrow ? config_.wire_dtype : bucket.dtype)};
    segments.push_back(static_cast<uint32_t>(cut_segments({&shape, 1}, ranks).size()));
  }
  const uint32_t slots = fewest_slots(segments, config_.max_in_flight, ranks);
  if (slots >= segments.size()) return nullptr;
  auto made = std::make_unique<BucketSlots>(plan, slots);
  if (made->bytes() >= plan.arena_bytes) return nullptr;
  return made;
}

// Of another plan the largest bucket has another size. Where there is no memory for it on one rank,
// all keep the plan that they have. News and results of the last step are still asked for.
Outcome<Ok> Reducer::exchange_slots(const Plan& next, const Gather& ask_all) {
  std::unique_ptr<BucketSlots> slots = slots_for(next);
  const uint64_t bytes = slots != nullptr ? slots->bytes() : next.arena_bytes;
  const bool is_same = bytes == buckets_bytes();
  Arena arena;
  const Outcome<Ok> made = is_same ? Outcome<Ok>(Ok{}) : make_arena(bytes, &arena);
  NORIA_TRY(agree_on_success(made, "reducer plan, memory", ask_all));
  const bool had_slots = slots_ != nullptr;
  slots_ = std::move(slots);
  if (is_same) return Ok{};
  std::memcpy(arena.base() + bytes, news_.numbers, news_count() * sizeof(*news_.numbers));
  for (uint32_t id = 0; id < tensors_.size() && !had_slots; ++id)
    if (!window_.used(id))
      std::memcpy(room_for_result(id), arena_.base() + records_.result_offsets[id],
                  readiness_->home(id).bytes);
  arena_ = std::move(arena);
  return Ok{};
}

// Of a tensor that this rank does not give: noria_grad_result() shows it after the step.
std::byte* Reducer::room_for_result(uint32_t id) {
  records_.unclaimed[id].resize(std::max<uint64_t>(readiness_->home(id).bytes, 1));
  return records_.unclaimed[id].data();
}

void Reducer::offer(uint32_t id, std::byte* memory, bool is_zero) {
  const Nanoseconds now = now_ns();
  for (BucketSlots::Piece& piece : slots_->pieces_of_tensor(id)) {
    times_.on_gradient(piece.bucket, now);
    times_.on_last_gradient(piece.bucket, now);
    if (slots_->offer(piece, memory, is_zero)) fill(piece);
  }
}

void Reducer::fill(const BucketSlots::Piece& piece) {
  Readiness& readiness = *readiness_;
  const Readiness::Home& home = readiness.home(piece.tensor);
  const ArenaRange part = part_in_bucket(plan_.buckets[piece.bucket], home.range());
  std::byte* const slot = place_of(piece.bucket);
  const uint64_t slot_begin = plan_.buckets[piece.bucket].arena_offset;
  uint64_t done = part.begin;
  for (uint32_t s = piece.first_stretch; s < piece.end_stretch; ++s) {
    const uint64_t upto = std::min(part.end, readiness.stretch_end(s));
    std::byte* const to = slot + (done - slot_begin);
    if (piece.is_zero)
      std::memset(to, 0, upto - done);
    else
      std::memcpy(to, piece.memory + (done - home.offset), upto - done);
    done = upto;
    if (!readiness.take(s)) continue;
    times_.on_queued(piece.bucket, now_ns());
    send_piece(piece.bucket);
  }
}

// Inside the gate. A hook that sees results runs in step_end() only.
void Reducer::finish_ended_buckets() {
  if (shows_results()) return;
  // acquire, and release below: each goes on where the one before stopped.
  if (progress_.is_finishing.exchange(true, std::memory_order_acquire)) return;
  for (uint32_t b = progress_.finished.load(std::memory_order_relaxed);
       b < plan_.buckets.size() && has_result(b); ++b)
    finish_bucket(b);
  progress_.is_finishing.store(false, std::memory_order_release);
}

}  // namespace noria::bucketing
