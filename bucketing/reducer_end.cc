// The end of a step: what is still owed is contributed, ranks' complaints are weighed, results are
// seen to bucket by bucket.
#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/counters.hpp"
#include "bucketing/device_buckets.hpp"
#include "bucketing/finite.hpp"
#include "bucketing/kernels.hpp"
#include "bucketing/reducer.hpp"
#include "bucketing/step_times.hpp"

namespace noria::bucketing {

namespace {

// It would wait for the call that runs the hook, and so for itself.
Outcome<Ok> refuse_in(const BucketHooks* hooks, const char* call) {
  if (hooks == nullptr || !hooks->is_running_here()) return Ok{};
  return Failure{NORIA_E_STATE, std::string(call) +
                                    " was called by a hook of this reducer, which is to return "
                                    "first: end the step where it was begun"};
}

// Whoever ended another step would wait for one that only this rank could end.
Outcome<Ok> check_turn(const OpenSteps& open, const OpenStep* mine, uint64_t step) {
  if (open.is_first(mine)) return Ok{};
  return Failure{NORIA_E_STATE,
                 "another reducer's step began before step " + std::to_string(step) +
                     " of this one and is still open: end it first, since steps of a communicator "
                     "end in the order in which they began"};
}

}  // namespace

Outcome<noria_step_info> Reducer::step_end(Consumer consumer) {
  NORIA_TRY(refuse_in(hooks_.get(), "noria_step_end()"));
  if (phase_ != Phase::open && ended_) {
    if (is_on_device() && ended_->is_ok()) NORIA_TRY(show_on_device(consumer));
    return *ended_;
  }
  if (phase_ != Phase::open) return Failure{NORIA_E_STATE, "noria_step_end() with no step open"};
  if (!mode_.accumulates) {
    NORIA_TRY(check_turn(*host_.open_steps, this, step_));
  }
  ended_ = end_step(consumer);
  return *ended_;
}

Outcome<noria_step_info> Reducer::step_join(bool* is_over, Consumer consumer) {
  if (host_.open_steps->any())
    return Failure{NORIA_E_STATE,
                   "noria_step_join() is a whole step: end those that are open on the communicator "
                   "first"};
  NORIA_TRY(step_begin());
  mode_.is_shadow = true;
  NORIA_TRY_ASSIGN(const noria_step_info info, step_end(consumer));
  *is_over = news_.numbers[StepNews::kLive] == 0;
  return info;
}

Outcome<noria_step_info> Reducer::end_step(Consumer consumer) {
  if (mode_.accumulates) {
    gate_.close();
    end_pass(false);
    phase_ = Phase::idle;
    return step_info(step_, mode_.begun_ns, now_ns(), {});
  }
  NORIA_TRY(finish(false, consumer));
  if (arrival_ != nullptr) NORIA_TRY(adopt_arrival());
  has_results_.store(true, std::memory_order_release);  // pairs with result()
  return *last_step_;
}

Outcome<Ok> Reducer::reset() {
  if (phase_ == Phase::registering)
    return Failure{NORIA_E_STATE, "noria_reducer_reset() comes after noria_reducer_seal()"};
  NORIA_TRY(refuse_in(hooks_.get(), "noria_reducer_reset()"));
  if (phase_ == Phase::open && mode_.accumulates) {
    gate_.close();
  } else if (phase_ == Phase::open) {
    NORIA_TRY(check_turn(*host_.open_steps, this, step_));
    const Outcome<Ok> ended = finish(true, {});  // ABORTED everywhere, which is what was asked for
    if (!ended.is_ok() && ended.failure().code != NORIA_E_ABORTED) return ended.failure();
  }
  if (host_.engine->failed()) return host_.engine->failure();
  restart_window();
  ended_.reset();
  phase_ = Phase::idle;
  return Ok{};
}

void Reducer::restart_window() {
  window_.restart(tensors_.size());
  if (is_on_device()) device_->forget_producers();
}

// The gate is closed: nothing fires any more.
void Reducer::end_pass(bool is_last) {
  window_.add(*readiness_,
              {.must_all_come = config_.unused == NORIA_UNUSED_ERROR && !mode_.is_shadow,
               .is_learned = config_.static_graph && !is_learning_ && !mode_.is_shadow,
               .is_last = is_last});
  if (!is_last && is_learning_) learn();
}

// From now on each pass of the graph is like this one. A tensor that took no part, though all must
// come, is still waited for, unless it was declared unused.
void Reducer::learn() {
  for (uint32_t id = 0; id < tensors_.size(); ++id) {
    const bool must_come = config_.unused == NORIA_UNUSED_ERROR && !readiness_->is_closed(id);
    records_.expected_fires[id] = std::max(must_come ? 1 : 0, readiness_->fires(id));
  }
  is_learning_ = false;
  expect_fires();
}

// Runs the open step to its end whatever this rank missed, so that no other rank waits for it.
Outcome<Ok> Reducer::finish(bool was_reset, Consumer consumer) {
  gate_.close();
  end_pass(true);
  is_window_over_ = true;
  // Of a deferred pass nothing was contributed yet; of another, what did not come often enough.
  for (uint32_t id = 0; id < tensors_.size(); ++id)
    if (mode_.is_deferred || readiness_->owed(id) != 0) contribute(id, window_.used(id));
  progress_.is_good = !complaints_of_step(was_reset).is_any();
  if (slots_ != nullptr) finish_buckets(slots_->first_of_last());
  // A hook that sees what is sent has seen all of it by now.
  const Complaints complaints = complaints_of_step(was_reset);
  Outcome<Ok> launched = Ok{};
  if (is_on_device()) launched = launch_rest(consumer);
  // The news of a rank whose device is lost would make the step good on others, until they hear of
  // it: without them it ends by the communicator's failure.
  if (host_.size == 1 || !is_device_lost_.load(std::memory_order_relaxed)) tell_news(complaints);
  if (host_.size > 1) host_.engine->wake();
  if (progress_.is_good && looks_at_results()) finish_buckets(buckets());
  // release: what was given; pairs with acquire in the engine.
  progress_.is_waited_for.store(true, std::memory_order_release);
  // One rank has the results already: its gradients.
  if (host_.size > 1)
    host_.engine->wake();
  else
    host_.engine->submit(collective_, false);
  host_.engine->wait(collective_, kNever);  // bounded by the collective's time-out

  Outcome<Ok> outcome = judge(complaints);
  // The others have this rank's verdict, and wait for none of what its device does.
  if (is_on_device()) {
    const Outcome<Ok> is_over = finish_on_device(launched, consumer, outcome.is_ok());
    if (outcome.is_ok()) outcome = is_over;
  }
  phase_ = outcome.is_ok() ? Phase::idle : Phase::failed;
  ++step_;
  if (outcome.is_ok()) {
    put_back_unused();
    if (is_learning_ && !mode_.is_shadow) learn();
    last_step_ = describe_step(now_ns());
  }
  if (host_.timeline != nullptr) [[unlikely]]
    show_step(outcome.is_ok());
  host_.open_steps->end(this);
  return outcome;
}

Complaints Reducer::complaints_of_step(bool was_reset) const {
  if (was_reset) return {.was_reset = true};
  Complaints complaints = window_.complaints();
  if (hooks_ != nullptr) complaints.hook = hooks_->complaint();
  if (!config_.is_nonfinite_error) return complaints;
  for (uint32_t b = 0; b < plan_.buckets.size() && complaints.nonfinite.empty(); ++b)
    for (const uint32_t id : plan_.buckets[b].tensors) {
      // relaxed: whoever stored it is out of the gate.
      if (!records_.is_nonfinite[id].load(std::memory_order_relaxed)) continue;
      complaints.nonfinite.push_back(id);
      complaints.nonfinite_bucket = b;
    }
  return complaints;
}

// This rank's part of the news is ready with it.
void Reducer::tell_news(const Complaints& complaints) {
  news_.numbers[StepNews::kVerdict] = verdict_of(complaints);
  news_.numbers[StepNews::kLive] = mode_.is_shadow && !window_.is_any_used() ? 0 : 1;
  for (uint32_t id = 0; id < tensors_.size() && keeps_; ++id)
    news_.numbers[StepNews::kUsed + id] = window_.used(id) ? 1 : 0;
  for (uint32_t s = news_.first_segment; s < readiness_->stretches(); ++s) {
    readiness_->take(s);
    if (hooks_ != nullptr) hooks_->open(s);
  }
}

bool Reducer::shows_results() const { return hooks_ != nullptr && hooks_->has(NORIA_HOOK_AFTER); }

void Reducer::put_back_unused() {
  for (uint32_t id = 0; id < records_.kept.size(); ++id) {
    if (!records_.kept[id].empty() && !is_used_by_any(id))
      std::copy(records_.kept[id].begin(), records_.kept[id].end(),
                arena_.base() + readiness_->home(id).offset);
    records_.kept[id].clear();
  }
}

// What this rank found in results, which come after its complaints were told. `verdict` 0: all
// gradients are finite.
void Reducer::complain_of_results(int32_t verdict, Complaints& mine) const {
  if (mine.was_reset) return;
  if (shows_results()) mine.hook = hooks_->complaint();
  if (verdict != 0 || !config_.is_sharded || !progress_.overflowed) return;
  mine.overflowed_bucket = *progress_.overflowed;
  for (const uint32_t id : plan_.buckets[mine.overflowed_bucket].tensors)
    if (result_part(mine.overflowed_bucket, id).bytes() != 0) mine.overflowed.push_back(id);
}

// All ranks share the verdict, so that either none of them or every one asks for the reasons. What
// is found in results may differ, and is asked for wherever somebody looks: what hooks say of them,
// and sums in shards.
Outcome<Ok> Reducer::judge(Complaints mine) const {
  if (collective_.failure.code != NORIA_OK) return collective_.failure;
  int32_t verdict = news_.numbers[StepNews::kVerdict];
  if (verdict != 0 || shows_results() || (config_.is_sharded && config_.is_nonfinite_error)) {
    complain_of_results(verdict, mine);
    NORIA_TRY_ASSIGN(const auto told, gather_among(host_, collective_.timeout_ns)(
                                          "step verdict", told_of(mine, tensors_)));
    if (verdict == 0) verdict = gravest_of(told);
    if (verdict != 0) return compose_failure(verdict, step_, told);
  }
  if (!progress_.overflowed) return Ok{};
  // Sums of finite gradients may not be. All ranks have the same ones.
  return Failure{NORIA_E_NONFINITE,
                 "step " + std::to_string(step_) + " failed: the sums in bucket " +
                     std::to_string(*progress_.overflowed) + " of " +
                     names_of(plan_.buckets[*progress_.overflowed].tensors, tensors_) +
                     " are not finite, though all gradients are: scale the loss down, or use "
                     "a wider dtype"};
}

// A shard stays where it is.
bool Reducer::looks_at_results() const {
  return (!config_.arena && !config_.is_sharded && !is_on_device()) || shows_results() ||
         config_.is_nonfinite_error;
}

// A bucket's results are seen to as soon as they are there, while later buckets are on the wire. If
// the step fails all the same, what was copied is as undefined as the rest.
void Reducer::finish_buckets(uint32_t end) {
  // relaxed: the gate is closed.
  for (uint32_t b = progress_.finished.load(std::memory_order_relaxed); b < end;) {
    if (has_result(b)) {
      finish_bucket(b++);
      continue;
    }
    // release: what was given; pairs with acquire in the engine.
    progress_.is_waited_for.store(true, std::memory_order_release);
    host_.engine->wake();  // all may have been given long ago: what others owe counts from here
    bool is_over = false;
    while (!is_over && !has_result(b))
      is_over = host_.engine->wait(collective_, kNever, &collective_.parts[b]);
    progress_.is_waited_for.store(false, std::memory_order_relaxed);
    if (is_over && collective_.failure.code != NORIA_OK) return;
  }
}

void Reducer::finish_bucket(uint32_t index) {
  const Bucket& bucket = plan_.buckets[index];
  if (progress_.is_good) {
    // Before a hook changes them: all ranks must find the same.
    const ArenaRange mine = result_of(bucket);
    if (config_.is_nonfinite_error && !progress_.overflowed &&
        !is_finite(bucket.dtype, place_of(index) + (mine.begin - bucket.arena_offset),
                   mine.bytes() / dtype_bytes(bucket.dtype)))
      progress_.overflowed = index;
    if (hooks_ != nullptr) hooks_->after(index);
    if (!config_.arena && !config_.is_sharded) copy_out(index);
  }
  progress_.finished.store(index + 1, std::memory_order_release);  // pairs with early_result()
  if (slots_ != nullptr)
    slots_->admit(index + slots_->slots() + 1,
                  [this](const BucketSlots::Piece& piece) { fill(piece); });
}

// Of a bucket without bytes nothing ever ends. One rank has nothing to wait for: its gradients are
// the result.
bool Reducer::has_result(size_t bucket) {
  return host_.size == 1 || plan_.buckets[bucket].bytes == 0 ||
         collective_.parts[bucket].has_ended();
}

// Of what this rank did not bring, nobody knows where the result should go: result() shows it. What
// result() delivered may have been changed since.
void Reducer::copy_out(uint32_t index) {
  const Bucket& bucket = plan_.buckets[index];
  if (slots_ != nullptr)
    return slots_->for_each(index, [&](const BucketSlots::Piece& piece) {
      const Readiness::Home& home = readiness_->home(piece.tensor);
      const ArenaRange part = part_in_bucket(bucket, home.range());
      std::memcpy(piece.memory + (part.begin - home.offset),
                  place_of(index) + (part.begin - bucket.arena_offset), part.bytes());
    });
  for (const uint32_t id : bucket.tensors) {
    const Readiness::Home& home = readiness_->home(id);
    const ArenaRange part = part_in_bucket(bucket, home.range());
    // relaxed: whoever stored them is out of the gate.
    if (part.bytes() == 0 || !window_.used(id) ||
        records_.is_delivered[id].load(std::memory_order_relaxed))
      continue;
    std::memcpy(records_.sources[id].load(std::memory_order_relaxed) + (part.begin - home.offset),
                arena_.base() + part.begin, part.bytes());
  }
}

WireTimes Reducer::wire_times(uint32_t bucket) const {
  if (is_on_device()) return device_->times(bucket);
  const Part& part = collective_.parts[bucket];
  return {.start_ns = part.start_ns, .end_ns = part.end_ns, .wire_ns = part.wire_ns};
}

noria_step_info Reducer::describe_step(Nanoseconds ended_ns) {
  if (described_version_ != plan_version_) describe_buckets();
  for (uint32_t b = 0; b < plan_.buckets.size(); ++b) {
    const BucketTimes::Times given = times_.times(b);  // after gate_.close()
    const WireTimes wire = wire_times(b);
    infos_[b].first_ns = given.first;
    infos_[b].queued_ns = given.queued;
    infos_[b].ready_ns = given.last;
    infos_[b].start_ns = wire.start_ns;
    infos_[b].end_ns = wire.end_ns;
    infos_[b].wire_ns = wire.wire_ns;
  }
  noria_step_info info = step_info(step_ - 1, mode_.begun_ns, ended_ns, infos_);
  info.wire_bytes = moved_bytes(*host_.engine) - mode_.moved_before;
  info.order_wait_ns = order_wait_ns(info.last_gradient_ns);
  return info;
}

void Reducer::show_step(bool is_good) {
  if (is_good)
    host_.timeline->on_step(seal_number_, *last_step_, infos_);
  else
    host_.timeline->on_failed_step();
}

}  // namespace noria::bucketing
