// One tensor's result, for whoever cannot wait for step_end() or has no gradient to put it in.
#include <cstring>
#include <string>

#include "bucketing/reducer.hpp"
#include "bucketing/reducer_words.hpp"

namespace noria::bucketing {

Outcome<const void*> Reducer::result(uint32_t id, Nanoseconds timeout, Consumer consumer) {
  if (!is_sealed_) return Failure{NORIA_E_STATE, "results exist after noria_reducer_seal()"};
  if (id >= tensors_.size()) return unknown_id(id, tensors_);
  if (gate_.enter_any()) {
    const LeaveOnExit inside{gate_};
    if (!mode_.accumulates && shows_results())
      return Failure{NORIA_E_STATE, "a hook sees results first: they come with noria_step_end()"};
    if (!mode_.accumulates)
      return is_on_device() ? early_device_result(id, timeout, consumer)
                            : early_result(id, timeout);
  }
  // acquire: the step's end, which moves what is read here.
  if (!has_results_.load(std::memory_order_acquire))
    return Failure{NORIA_E_STATE,
                   "there is no result: no step has succeeded since the last one began"};
  if (!is_used_by_any(id)) return nullptr;
  if (is_on_device()) return device_result(id, consumer);
  if (config_.is_sharded) return first_in_shards(id);
  if (!config_.arena && window_.used(id))  // relaxed: published by the end of the step
    return records_.sources[id].load(std::memory_order_relaxed);
  if (!records_.unclaimed.empty() && !records_.unclaimed[id].empty())
    return records_.unclaimed[id].data();
  return arena_.base() + records_.result_offsets[id];
}

bool Reducer::is_given(uint32_t id) const {
  return !mode_.is_deferred && readiness_->owed(id) == 0 && !readiness_->is_closed(id) &&
         readiness_->fires(id) != 0;
}

// Of a tensor that was given here, so that somebody used it; that its buckets have ended says that
// all ranks gave it. Of an empty one, or one whose shards are all others', there is nothing to wait
// for. The caller is inside the gate: the step cannot end meanwhile but by a failure, and one that
// wants to end waits for `kLook` at most.
Outcome<const void*> Reducer::early_result(uint32_t id, Nanoseconds timeout) {
  constexpr Nanoseconds kLook = 1_ms;        // long beside what it costs to take over the driving
  constexpr Nanoseconds kSlotLook = 200_us;  // short beside the wire time of a bucket
  const Readiness::Home& home = readiness_->home(id);
  if (!is_given(id)) return no_result_yet(id, 0);
  const Nanoseconds bound = timeout != 0 ? timeout : collective_.timeout_ns;
  const Nanoseconds deadline = now_ns() + bound;
  const auto has_come = [this](uint32_t bucket) {
    if (slots_ == nullptr) return has_result(bucket);
    // Out of a slot it is copied before anybody is told of it.
    finish_ended_buckets();
    return progress_.finished.load(std::memory_order_acquire) > bucket;  // as finish_bucket() says
  };
  for (uint32_t s = home.first_stretch; s < home.end_stretch(); ++s) {
    const uint32_t bucket = readiness_->bucket_of(s);
    if (result_part(bucket, id).bytes() == 0) continue;
    while (!has_come(bucket)) {
      if (!gate_.is_open()) return ended_meanwhile(id, tensors_);
      // Slots are emptied in order: there the bucket's own end may not be what is missing.
      Part* const part = slots_ == nullptr ? &collective_.parts[bucket] : nullptr;
      const Nanoseconds look = slots_ == nullptr ? kLook : kSlotLook;
      if (host_.engine->wait(collective_, now_ns() + look, part) &&
          collective_.failure.code != NORIA_OK)
        return collective_.failure;
      if (now_ns() >= deadline) return no_result_yet(id, bound);
    }
  }
  if (config_.is_sharded) return first_in_shards(id);
  if (config_.arena) return arena_.base() + home.offset;
  // relaxed: the caller gave the tensor, and calls for it one at a time.
  std::byte* const source = records_.sources[id].load(std::memory_order_relaxed);
  if (slots_ != nullptr) return source;
  if (home.bytes != 0 && !records_.is_delivered[id].exchange(true, std::memory_order_relaxed))
    std::memcpy(source, arena_.base() + home.offset, home.bytes);
  return source;
}

Failure Reducer::no_result_yet(uint32_t id, Nanoseconds waited) const {
  const std::string tensor = "tensor " + tensors_.describe(id);
  if (waited == 0)
    return Failure{NORIA_E_STATE,
                   tensor + ": its result comes with noria_step_end(), as this step " +
                       (mode_.is_deferred ? "sends nothing before" : "was not given its gradient")};
  const Readiness::Home& home = readiness_->home(id);
  std::string why = "other ranks have not given all of its bucket";
  std::vector<uint32_t> not_here;
  for (uint32_t s = home.first_stretch; s < home.end_stretch() && not_here.empty(); ++s)
    for (const uint32_t other : plan_.buckets[readiness_->bucket_of(s)].tensors)
      if (readiness_->owed(other) != 0) not_here.push_back(other);
  if (!not_here.empty()) why = "its bucket waits here for " + names_of(not_here, tensors_);
  if (!host_.open_steps->is_first(this))
    why = "another reducer's step began before this one and is still open: end it first";
  return Failure{NORIA_E_TIMEOUT, tensor + ": no result within " +
                                      std::to_string(waited / 1'000'000) + " ms; " + why};
}

}  // namespace noria::bucketing
