#include "bucketing/bucket_hooks.hpp"

#include <utility>

#include "base/value_text.hpp"
#include "bucketing/kernels.hpp"

namespace noria::bucketing {
namespace {

constexpr size_t kMostText = 256;  // of what a hook says, with its NUL

constinit thread_local const BucketHooks* running_here = nullptr;

}  // namespace

BucketHooks::View BucketHooks::view_of(const Bucket& bucket, uint32_t index,
                                       const ArenaRange& range, std::span<const ArenaRange> tensors,
                                       std::byte* place) {
  View view;
  const uint64_t element = dtype_bytes(bucket.dtype);
  for (const uint32_t id : bucket.tensors) {
    const ArenaRange part = overlap(tensors[id], range);
    if (part.bytes() == 0) continue;
    view.ids.push_back(id);
    view.firsts.push_back((part.begin - tensors[id].begin) / element);
    view.offsets.push_back(part.begin - range.begin);
    view.bytes.push_back(part.bytes());
  }
  view.shown = {.struct_size = sizeof(noria_hook_bucket),
                .bucket = index,
                .dtype = bucket.dtype,
                .tensors = static_cast<uint32_t>(view.ids.size()),
                .offset = range.begin,
                .bytes = range.bytes(),
                .data = place + (range.begin - bucket.arena_offset),
                .tensor_ids = view.ids.data(),
                .tensor_firsts = view.firsts.data(),
                .tensor_offsets = view.offsets.data(),
                .tensor_bytes = view.bytes.data()};
  return view;
}

void BucketHooks::install(const Plan& plan, std::span<const ArenaRange> tensors,
                          std::span<const ArenaRange> own, std::span<std::byte* const> places,
                          std::span<const Segment> segments) {
  segments_ = segments.size();
  gates_.reset(new std::atomic<uint32_t>[segments.size()]);
  pieces_left_.reset(new std::atomic<uint32_t>[plan.buckets.size()]);
  first_segments_.assign(1, 0);
  pieces_.clear();
  for (auto& views : views_) views.clear();
  for (uint32_t b = 0; b < plan.buckets.size(); ++b) {
    const Bucket& bucket = plan.buckets[b];
    const ArenaRange whole{bucket.arena_offset, bucket.arena_offset + bucket.bytes};
    views_[NORIA_HOOK_BEFORE].push_back(view_of(bucket, b, whole, tensors, places[b]));
    views_[NORIA_HOOK_AFTER].push_back(view_of(bucket, b, own[b], tensors, places[b]));
    uint32_t end = first_segments_.back(), pieces = 0;
    // Of slices the first one's counter counts for all.
    for (; end < segments.size() && segments[end].part == b; ++end)
      pieces += segments[end].slice == 0 ? 1 : 0;
    first_segments_.push_back(end);
    pieces_.push_back(pieces);
  }
}

void BucketHooks::restart(uint64_t step) {
  // relaxed: published by whatever lets callers in, and by the submission of the step.
  for (size_t s = 0; s < segments_; ++s) gates_[s].store(1, std::memory_order_relaxed);
  for (size_t b = 0; b < pieces_.size(); ++b)
    pieces_left_[b].store(pieces_[b], std::memory_order_relaxed);
  for (auto& views : views_)
    for (View& view : views) view.shown.step = step;
  const MutexLock lock(mutex_);
  complaint_.reset();
}

bool BucketHooks::on_piece(uint32_t bucket, const std::atomic<uint32_t>* pending) {
  if (!has(NORIA_HOOK_BEFORE)) return true;
  // acq_rel: the last one comes after all others.
  if (pieces_left_[bucket].fetch_sub(1, std::memory_order_acq_rel) != 1) return false;
  const uint32_t first = first_segments_[bucket], end = first_segments_[bucket + 1];
  // acquire: each counter ends a chain of releases, one for each gradient in the segment.
  for (uint32_t s = first; s < end; ++s)
    static_cast<void>(pending[s].load(std::memory_order_acquire));
  call(NORIA_HOOK_BEFORE, bucket);
  for (uint32_t s = first; s < end; ++s) open(s);
  return true;
}

void BucketHooks::after(uint32_t bucket) {
  if (has(NORIA_HOOK_AFTER) && views_[NORIA_HOOK_AFTER][bucket].shown.bytes != 0)
    call(NORIA_HOOK_AFTER, bucket);
}

void BucketHooks::call(noria_hook_moment moment, uint32_t bucket) {
  const BucketHook& hook = hooks_[moment];
  char why[kMostText] = {};
  running_.store(uint64_t{bucket} * 2 + moment + 1, std::memory_order_relaxed);
  running_here = this;
  const int32_t code = hook.function(&views_[moment][bucket].shown, why, sizeof why, hook.user);
  running_here = nullptr;
  running_.store(0, std::memory_order_relaxed);
  if (code == 0) return;
  why[sizeof why - 1] = '\0';
  complain(moment, bucket, code, why);
}

void BucketHooks::complain(noria_hook_moment moment, uint32_t bucket, int32_t code,
                           std::string text) {
  const MutexLock lock(mutex_);
  // One that failed before the bucket was sent spoils the sums, whatever came of them later.
  if (complaint_ && std::pair(complaint_->moment, complaint_->bucket) <= std::pair(moment, bucket))
    return;
  complaint_ = {
      .moment = moment, .bucket = bucket, .code = code, .text = printable(std::move(text))};
}

std::optional<HookComplaint> BucketHooks::complaint() const {
  const MutexLock lock(mutex_);
  return complaint_;
}

bool BucketHooks::is_running_here() const { return running_here == this; }

std::string BucketHooks::running() const {
  const uint64_t running = running_.load(std::memory_order_relaxed);
  if (running == 0) return {};
  const auto moment = static_cast<noria_hook_moment>((running - 1) % 2);
  return "is in its hook for bucket " + std::to_string((running - 1) / 2) + ' ' +
         hook_moment_text(moment);
}

}  // namespace noria::bucketing
