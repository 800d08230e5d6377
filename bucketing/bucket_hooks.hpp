// BucketHooks: a user's functions that see each bucket whole, before it is sent and after it is
// reduced.
//
// Where there is one for `before`, the ring sees gates() in place of what counts gradients: a
// bucket's segments open together, when the hook has returned, so that it is sent when it is full.
// The hook runs on the thread that completed the bucket's last piece, a user's one: noria's own
// threads run nobody else's code. What a hook complains of is kept for the step's verdict; the
// bucket is sent all the same, as no rank may leave the others waiting.
//
// Costs nothing where no hook is set; no allocation in a step but of a complaint's text.
//
// Threads: set() and install() init only, or between steps; restart(), after() and complaint() one
// at a time; on_piece() any thread, several at once; is_running_here() and running() any thread.
#pragma once

#include <noria/bucketing.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/mutex.hpp"
#include "bucketing/plan.hpp"
#include "bucketing/segments.hpp"
#include "bucketing/verdict.hpp"

namespace noria::bucketing {

struct BucketHook {
  noria_bucket_hook function = nullptr;  // null: none
  void* user = nullptr;
};

class BucketHooks {
 public:
  void set(noria_hook_moment moment, const BucketHook& hook) { hooks_[moment] = hook; }
  bool has(noria_hook_moment moment) const { return hooks_[moment].function != nullptr; }
  // A bit for each moment that has one.
  uint32_t moments() const {
    return (has(NORIA_HOOK_BEFORE) ? 1U : 0U) | (has(NORIA_HOOK_AFTER) ? 2U : 0U);
  }

  // What the buckets of a plan show. `tensors` in the layout by id, `own` what of each bucket holds
  // its reduction, `places` where each bucket lies, `segments` those of the buckets, then others,
  // each of which waits for open().
  void install(const Plan& plan, std::span<const ArenaRange> tensors,
               std::span<const ArenaRange> own, std::span<std::byte* const> places,
               std::span<const Segment> segments);

  void restart(uint64_t step);
  // One counter a segment, for the ring.
  std::atomic<uint32_t>* gates() { return gates_.get(); }
  // All gradients of a piece of the bucket are in place, as `pending` counts them by segment. True:
  // the bucket was complete, its hook has run, and it is open.
  bool on_piece(uint32_t bucket, const std::atomic<uint32_t>* pending);
  void open(uint32_t segment) { gates_[segment].store(0, std::memory_order_release); }
  // The bucket's reduction is in place.
  void after(uint32_t bucket);

  // Of the lowest bucket with one. Before `after`s there are those of `before` alone.
  std::optional<HookComplaint> complaint() const;
  // The calling thread is in one of these functions.
  bool is_running_here() const;
  // "is in its hook before bucket 3 is sent"; empty while none runs.
  std::string running() const;

 private:
  // A bucket as a moment's hook sees it.
  struct View {
    noria_hook_bucket shown;
    std::vector<uint32_t> ids;
    std::vector<uint64_t> firsts, offsets, bytes;
  };
  static View view_of(const Bucket& bucket, uint32_t index, const ArenaRange& range,
                      std::span<const ArenaRange> tensors, std::byte* place);
  void call(noria_hook_moment moment, uint32_t bucket);
  void complain(noria_hook_moment moment, uint32_t bucket, int32_t code, std::string text);

  BucketHook hooks_[2];
  std::vector<View> views_[2];
  std::vector<uint32_t> first_segments_;  // of each bucket, and past the last
  std::vector<uint32_t> pieces_;          // of each bucket, that become ready one by one
  size_t segments_ = 0;
  std::unique_ptr<std::atomic<uint32_t>[]> gates_;
  std::unique_ptr<std::atomic<uint32_t>[]> pieces_left_;  // by bucket
  // Twice the bucket, and the moment, plus one; 0: none. Of several one: a hint for texts.
  std::atomic<uint64_t> running_{0};

  mutable Mutex mutex_;
  std::optional<HookComplaint> complaint_ NORIA_GUARDED_BY(mutex_);
};

}  // namespace noria::bucketing
