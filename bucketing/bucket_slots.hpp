// BucketSlots: fewer places in memory than there are buckets, for reducers that copy.
//
// Bucket b lies in slot b mod slots(), each as large as the largest bucket. It may be filled once
// it is admitted: when the bucket that lay there before has ended on this rank and was copied out.
// A gradient that comes earlier stays where it is, as a **piece** of each of its buckets, until its
// bucket is admitted; then whoever admits fills it in.
//
// No other rank needs to know. When a bucket has ended here, nobody reads or writes it any more:
// each of its finished chunks came here, or was made here, after it had passed through every rank,
// and was sent on. And of a bucket in the same slot nothing lands here before this rank has filled
// it, as each finished chunk holds this rank's part. What a ring cannot do without is segments that
// are ready behind those under way (ring_schedule.hpp): fewest_slots() says how many.
//
// Costs of a piece: two atomic operations and 40 bytes. No allocation after the constructor.
//
// Threads: offer() any thread, several at once, beside one that calls admit(); the rest between
// steps.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/units.hpp"
#include "bucketing/plan.hpp"
#include "bucketing/readiness.hpp"

namespace noria::bucketing {

// At least `wanted`, and so many that none of a ring's buckets waits for one that waits for it.
// `segments` of each bucket, in launch order.
uint32_t fewest_slots(std::span<const uint32_t> segments, uint32_t wanted, uint32_t ranks);

class BucketSlots {
 public:
  // What of a tensor lies in one bucket.
  struct Piece {
    uint32_t tensor = 0;
    uint32_t bucket = 0;
    uint32_t first_stretch = 0, end_stretch = 0;
    // Where the tensor's gradient is, and its result goes; the result alone, if it `is_zero`.
    std::byte* memory = nullptr;
    bool is_zero = false;

   private:
    friend class BucketSlots;
    enum class State : uint8_t { absent, offered, taken };
    std::atomic<State> state{State::absent};
  };

  BucketSlots(const Plan& plan, uint32_t slots);
  // What the plan's tensors are cut into. Call it once, before the first restart().
  void cut(const Plan& plan, const Readiness& readiness);

  uint32_t slots() const { return slots_; }
  uint64_t bytes() const { return slots_ * slot_bytes_; }
  uint64_t offset_of(uint32_t bucket) const { return bucket % slots_ * slot_bytes_; }

  // Nothing is offered, and the first slots() buckets are admitted.
  void restart();
  std::span<Piece> pieces_of_tensor(uint32_t id) {
    return {pieces_.get() + first_piece_[id], first_piece_[id + 1] - first_piece_[id]};
  }
  // The piece's memory is valid. True: fill it in now, which nobody else does.
  bool offer(Piece& piece, std::byte* memory, bool is_zero) {
    piece.memory = memory;
    piece.is_zero = is_zero;
    // seq_cst, here and in admit(): either the piece is seen offered there, or admitted here.
    piece.state.store(Piece::State::offered);
    return admitted_.load() > piece.bucket && take(piece);
  }
  // When the buckets before it have ended, all others can be filled. One without bytes needs no
  // slot, and is not waited for.
  uint32_t first_of_last() const { return first_of_last_; }
  // Buckets before `end` may be filled, where there are as many; fill(piece) for what was offered
  // of the new ones.
  template <class Fill>
  void admit(uint32_t end, Fill fill) {
    const uint32_t before = admitted_.exchange(end);
    for (uint32_t b = before; b < std::min<size_t>(end, of_bucket_.size()); ++b)
      for_each(b, [&](Piece& piece) {
        if (piece.state.load() == Piece::State::offered && take(piece)) fill(piece);
      });
  }
  template <class Visit>
  void for_each(uint32_t bucket, Visit visit) {
    for (const uint32_t index : of_bucket_[bucket]) visit(pieces_[index]);
  }

 private:
  static bool take(Piece& piece) {
    // acquire: the piece's memory, and what is in it, whoever offered it.
    return piece.state.exchange(Piece::State::taken, std::memory_order_acq_rel) ==
           Piece::State::offered;
  }

  uint32_t slots_ = 1;
  uint64_t slot_bytes_ = 0;
  uint32_t first_of_last_ = 0;
  std::unique_ptr<Piece[]> pieces_;               // tensor by tensor
  std::vector<uint32_t> first_piece_;             // of each tensor, and past the last
  std::vector<std::vector<uint32_t>> of_bucket_;  // its pieces
  std::atomic<uint32_t> admitted_{0};
};

}  // namespace noria::bucketing
