#include "bucketing/bucket_slots.hpp"

#include <algorithm>
#include <numeric>

namespace noria::bucketing {

// In the order of work a segment's last step comes behind the first one of the segment `ranks` - 3
// further on. That holds in both phases, and the second begins with what the first has ended: twice
// as many segments behind a bucket must be ready before it ends, or all that there are.
uint32_t fewest_slots(std::span<const uint32_t> segments, uint32_t wanted, uint32_t ranks) {
  const uint64_t needed = ranks > 3 ? 2 * uint64_t{ranks - 3} : 0;
  const size_t buckets = segments.size();
  std::vector<uint64_t> before(buckets + 1, 0);  // segments, of each bucket and past the last
  std::partial_sum(segments.begin(), segments.end(), before.begin() + 1);
  const auto is_enough = [&](uint32_t slots) {
    for (size_t b = 0; b < buckets; ++b) {
      const uint64_t filled = before[std::min<size_t>(b + slots, buckets)] - before[b + 1];
      const uint64_t behind = before[buckets] - before[b + 1];
      if (segments[b] != 0 && filled < std::min(needed, behind)) return false;
    }
    return true;
  };
  uint32_t slots = wanted;
  while (slots < buckets && !is_enough(slots)) ++slots;
  return slots;
}

BucketSlots::BucketSlots(const Plan& plan, uint32_t slots)
    : slots_(slots), of_bucket_(plan.buckets.size()) {
  for (const Bucket& bucket : plan.buckets)
    slot_bytes_ = std::max(slot_bytes_, align_up(bucket.bytes, kBucketAlign));
  auto filled = static_cast<uint32_t>(plan.buckets.size());
  while (filled > 0 && plan.buckets[filled - 1].bytes == 0) --filled;
  first_of_last_ = filled - std::min(filled, slots);
}

void BucketSlots::cut(const Plan& plan, const Readiness& readiness) {
  const uint32_t tensors = readiness.tensors();
  // Pieces of a tensor follow each other along the arena, as its stretches do.
  const auto each_piece = [&](auto visit) {
    for (uint32_t id = 0; id < tensors; ++id) {
      const Readiness::Home& home = readiness.home(id);
      for (uint32_t s = home.first_stretch; s < home.end_stretch();) {
        const uint32_t first = s, bucket = readiness.bucket_of(s);
        while (s < home.end_stretch() && readiness.bucket_of(s) == bucket) ++s;
        visit(id, bucket, first, s);
      }
    }
  };
  first_piece_.assign(tensors + 1, 0);
  each_piece([&](uint32_t id, uint32_t, uint32_t, uint32_t) { ++first_piece_[id + 1]; });
  for (uint32_t id = 0; id < tensors; ++id) first_piece_[id + 1] += first_piece_[id];
  pieces_.reset(new Piece[first_piece_.back()]);
  uint32_t index = 0;
  each_piece([&](uint32_t id, uint32_t bucket, uint32_t first, uint32_t end) {
    Piece& piece = pieces_[index];
    piece.tensor = id;
    piece.bucket = bucket;
    piece.first_stretch = first;
    piece.end_stretch = end;
    of_bucket_[bucket].push_back(index++);
  });
  for (size_t b = 0; b < plan.buckets.size(); ++b) of_bucket_[b].shrink_to_fit();
}

void BucketSlots::restart() {
  // relaxed: published by whatever lets callers in.
  for (uint32_t i = 0; i < first_piece_.back(); ++i)
    pieces_[i].state.store(Piece::State::absent, std::memory_order_relaxed);
  admitted_.store(std::min<uint32_t>(slots_, static_cast<uint32_t>(of_bucket_.size())),
                  std::memory_order_relaxed);
}

}  // namespace noria::bucketing
