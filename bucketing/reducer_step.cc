#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/counters.hpp"
#include "base/units.hpp"
#include "bucketing/finite.hpp"
#include "bucketing/reducer.hpp"
#include "bucketing/step_times.hpp"

namespace noria::bucketing {

// ---- begin --------------------------------------------------------------------------------------

Outcome<Ok> Reducer::step_begin(bool accumulates) {
  if (phase_ == Phase::registering)
    return Failure{NORIA_E_STATE, "noria_step_begin() comes after noria_reducer_seal()"};
  if (phase_ == Phase::open)
    return Failure{NORIA_E_STATE, "step " + std::to_string(step_) +
                                      " is open: end it with noria_step_end() first"};
  if (host_.engine->failed()) return host_.engine->failure();
  if (phase_ == Phase::failed)
    return Failure{NORIA_E_STATE, "step " + std::to_string(step_ - 1) +
                                      " failed: call noria_reducer_reset() on every rank first"};

  begun_ns_ = now_ns();
  has_results_.store(false, std::memory_order_relaxed);  // published by gate_.open()
  ended_.reset();
  accumulates_ = accumulates;
  is_shadow_ = false;
  is_deferred_ = accumulates || is_learning_;
  is_unusual_ = is_deferred_ || arrival_ != nullptr || config_.is_nonfinite_error;
  readiness_->restart();
  if (arrival_ != nullptr) arrival_->restart();
  if (std::exchange(is_window_over_, false)) window_.restart(tensors_.size());
  if (!accumulates) start_collective();
  phase_ = Phase::open;
  gate_.open();
  return Ok{};
}

void Reducer::start_collective() {
  result_offsets_ = plan_.offsets;
  host_.open_steps->begin(this);
  times_.restart();  // published by gate_.open()
  moved_before_ = moved_bytes();
  for (Part& part : collective_.parts) part.start_ns = part.end_ns = part.wire_ns = 0;
  if (!config_.arena)
    for (uint32_t id = 0; id < tensors_.size(); ++id)
      is_delivered_[id].store(false, std::memory_order_relaxed);  // published by gate_.open()
  for (uint32_t id = 0; id < tensors_.size() && config_.is_nonfinite_error; ++id)
    is_nonfinite_[id].store(false, std::memory_order_relaxed);  // likewise
  collective_.failure = {NORIA_OK, {}};
  // relaxed: published by submit().
  collective_.state.store(Collective::State::queued, std::memory_order_relaxed);
  // Now, not with the first gradient: while the backward pass begins, the ranks greet each other
  // and post what the first bucket needs. One rank has nothing to send before the end.
  if (host_.size > 1) host_.engine->submit(collective_, true);
  // Of what a static graph never uses nothing will come.
  for (uint32_t id = 0; id < tensors_.size() && config_.static_graph; ++id)
    if (readiness_->expected(id) == 0) contribute(id, window_.used(id));
}

// ---- gradients ----------------------------------------------------------------------------------

namespace {

// A gradient is given when the call is made, though its copy may take long. Where it does not, the
// clock is read once, after it.
constexpr uint64_t kLongCopy = 16_KiB;
[[gnu::noinline]] Nanoseconds time_before_copy() { return now_ns(); }

}  // namespace

Outcome<Ok> Reducer::grad_ready(uint32_t id, const void* grad) {
  if (!gate_.enter()) [[unlikely]]
    return no_step_open("noria_grad_ready()");
  const LeaveOnExit inside{gate_};
  Readiness& readiness = *readiness_;
  if (id >= readiness.tensors()) [[unlikely]]
    return unknown_id(id);
  const Readiness::Home& home = readiness.home(id);
  const bool is_pointer_good = config_.arena
                                   ? grad == nullptr || grad == arena_.base() + home.offset
                                   : grad != nullptr || home.bytes == 0;
  if (!is_pointer_good) [[unlikely]]
    return wrong_pointer(id);
  auto* const source = static_cast<std::byte*>(const_cast<void*>(grad));
  // step_end() writes the result where the gradient came from: the caller owns that memory.
  // relaxed: fire() publishes it.
  if (!config_.arena) sources_[id].store(source, std::memory_order_relaxed);
  const Readiness::Fire fire = readiness.fire(id);
  if (fire == Readiness::Fire::late) [[unlikely]]
    return came_late(id);
  const bool is_last = fire == Readiness::Fire::last;
  if (!is_last || is_unusual_) [[unlikely]]
    give_unusually(id, source, is_last);
  else if (config_.arena)
    take_stretches(home);
  else
    copy_in(id, source);
  return Ok{};
}

void Reducer::give_unusually(uint32_t id, std::byte* grad, bool is_last) {
  if (arrival_ != nullptr) arrival_->note(id);
  if (!is_last || is_deferred_) return;
  if (config_.arena) grad = arena_.base() + readiness_->home(id).offset;
  look_for_nonfinite(id, grad);
  config_.arena ? take_stretches(readiness_->home(id)) : copy_in(id, grad);
}

// Before it is sent: afterwards sums of all ranks stand in its place.
void Reducer::look_for_nonfinite(uint32_t id, const std::byte* grad) {
  const Tensor& tensor = tensors_[id];
  if (config_.is_nonfinite_error && !is_finite(tensor.dtype, grad, tensor.numel))
    is_nonfinite_[id].store(true, std::memory_order_relaxed);  // read after gate_.close()
}

Outcome<Ok> Reducer::grad_unused(std::span<const uint32_t> ids) {
  if (!gate_.enter()) return no_step_open("noria_grad_unused()");
  const LeaveOnExit inside{gate_};
  for (const uint32_t id : ids)
    if (id >= readiness_->tensors()) return unknown_id(id);
  for (const uint32_t id : ids) {
    if (!readiness_->close(id)) return came_late(id);
    // Of what a static graph never uses start_collective() did.
    if (!is_deferred_ && readiness_->expected(id) != 0)
      contribute(id, readiness_->fires(id) > 0 || window_.used(id));
  }
  return Ok{};
}

// What earlier passes of the window, or fires of this one, brought; zeros where that is nothing.
void Reducer::contribute(uint32_t id, bool is_used) {
  const Readiness::Home& home = readiness_->home(id);
  std::byte* const slot = arena_.base() + home.offset;
  // relaxed: the fire that stored it was acquired.
  const std::byte* const grad = config_.arena ? slot : sources_[id].load(std::memory_order_relaxed);
  if (is_used) look_for_nonfinite(id, grad);
  if (is_used && !config_.arena) return copy_in(id, grad);
  if (!is_used) {
    if (!kept_.empty()) kept_[id].assign(slot, slot + home.bytes);
    std::memset(slot, 0, home.bytes);
  }
  take_stretches(home);
}

void Reducer::take_stretches(const Readiness::Home& home) {
  Readiness& readiness = *readiness_;  // and `end`: behind an atomic all else is read anew
  const uint32_t end = home.end_stretch();
  for (uint32_t s = home.first_stretch; s < end; ++s) {
    times_.on_gradient(readiness.bucket_of(s), 0);
    if (readiness.take(s)) on_stretch_ready(s, 0);
  }
}

// Segment by segment, so that the ring sends the head of a large tensor while its tail is copied.
void Reducer::copy_in(uint32_t id, const std::byte* grad) {
  Readiness& readiness = *readiness_;
  const Readiness::Home home = readiness.home(id);  // a copy: it does not change under the memcpy
  std::byte* const slot = arena_.base() + home.offset;
  const Nanoseconds given = home.bytes >= kLongCopy ? time_before_copy() : 0;
  const uint32_t end = home.end_stretch();
  uint64_t done = 0;
  for (uint32_t s = home.first_stretch; s < end; ++s) {
    const uint64_t upto = std::min(home.bytes, readiness.stretch_end(s) - home.offset);
    times_.on_gradient(readiness.bucket_of(s), given);
    std::memcpy(slot + done, grad + done, upto - done);
    done = upto;
    if (readiness.take(s)) on_stretch_ready(s, given);
  }
}

// `given` 0: now.
void Reducer::on_stretch_ready(uint32_t stretch, Nanoseconds given) {
  const Nanoseconds now = now_ns();
  times_.on_piece(readiness_->bucket_of(stretch), given != 0 ? given : now, now);
  host_.engine->wake();
}

Failure Reducer::no_step_open(const char* call) const {
  return Failure{NORIA_E_STATE, std::string(call) +
                                    " with no step open: it comes after noria_step_begin(), and "
                                    "every call must return before noria_step_end() is called"};
}

Failure Reducer::wrong_pointer(uint32_t id) const {
  return Failure{NORIA_E_ARG,
                 "tensor " + tensors_.describe(id) +
                     (config_.arena ? ": in arena mode the gradient lies in noria_reducer_view(); "
                                      "pass that pointer or NULL"
                                    : ": the gradient is NULL")};
}

Failure Reducer::came_late(uint32_t id) const {
  const int32_t fires = readiness_->expected(id);
  const std::string times = fires == 1 ? "once" : std::to_string(fires) + " times";
  std::string why =
      " was given before in this step, which fails on all ranks: call "
      "noria_grad_ready() " +
      times + ", after the gradient was accumulated, or say in expected_fires how often";
  if (config_.static_graph && !is_learning_)
    why = " came " + (fires == 0 ? std::string("never") : times) +
          " in the first step, from which the static graph was learned, and more often now: the "
          "step fails on all ranks; set static_graph to 0 where the graph changes";
  if (readiness_->is_closed(id))
    why =
        " was declared unused before in this step, which fails on all ranks: call "
        "noria_grad_unused() once, when no gradient will come";
  return Failure{NORIA_E_DUP_READY, "tensor " + tensors_.describe(id) + why};
}

// ---- end ----------------------------------------------------------------------------------------

Outcome<noria_step_info> Reducer::step_end() {
  if (phase_ != Phase::open && ended_) return *ended_;
  if (phase_ != Phase::open) return Failure{NORIA_E_STATE, "noria_step_end() with no step open"};
  if (!accumulates_) {
    NORIA_TRY(check_turn());
  }
  ended_ = end_step();
  return *ended_;
}

// Whoever ended another step would wait for one that only this rank could end.
Outcome<Ok> Reducer::check_turn() const {
  if (host_.open_steps->is_first(this)) return Ok{};
  return Failure{NORIA_E_STATE,
                 "another reducer's step began before step " + std::to_string(step_) +
                     " of this one and is still open: end it first, since steps of a communicator "
                     "end in the order in which they began"};
}

Outcome<noria_step_info> Reducer::step_join(bool* is_over) {
  if (host_.open_steps->any())
    return Failure{NORIA_E_STATE,
                   "noria_step_join() is a whole step: end those that are open on the communicator "
                   "first"};
  NORIA_TRY(step_begin());
  is_shadow_ = true;
  NORIA_TRY_ASSIGN(const noria_step_info info, step_end());
  *is_over = news_[kNewsLive] == 0;
  return info;
}

Outcome<noria_step_info> Reducer::end_step() {
  if (accumulates_) {
    gate_.close();
    end_pass(false);
    phase_ = Phase::idle;
    return step_info(step_, begun_ns_, now_ns(), {});
  }
  NORIA_TRY(finish(false));
  if (arrival_ != nullptr) NORIA_TRY(adopt_arrival());
  has_results_.store(true, std::memory_order_release);  // pairs with result()
  return *last_step_;
}

Outcome<Ok> Reducer::reset() {
  if (phase_ == Phase::registering)
    return Failure{NORIA_E_STATE, "noria_reducer_reset() comes after noria_reducer_seal()"};
  if (phase_ == Phase::open && accumulates_) {
    gate_.close();
  } else if (phase_ == Phase::open) {
    NORIA_TRY(check_turn());
    const Outcome<Ok> ended = finish(true);  // ABORTED everywhere, which is what was asked for
    if (!ended.is_ok() && ended.failure().code != NORIA_E_ABORTED) return ended.failure();
  }
  if (host_.engine->failed()) return host_.engine->failure();
  window_.restart(tensors_.size());
  ended_.reset();
  phase_ = Phase::idle;
  return Ok{};
}

// The gate is closed: nothing fires any more.
void Reducer::end_pass(bool is_last) {
  window_.add(*readiness_, {.must_all_come = config_.unused == NORIA_UNUSED_ERROR && !is_shadow_,
                            .is_learned = config_.static_graph && !is_learning_ && !is_shadow_,
                            .is_last = is_last});
  if (!is_last && is_learning_) learn();
}

// From now on each pass of the graph is like this one. A tensor that took no part, though all must
// come, is still waited for, unless it was declared unused.
void Reducer::learn() {
  for (uint32_t id = 0; id < tensors_.size(); ++id) {
    const bool must_come = config_.unused == NORIA_UNUSED_ERROR && !readiness_->is_closed(id);
    expected_fires_[id] = std::max(must_come ? 1 : 0, readiness_->fires(id));
  }
  is_learning_ = false;
  expect_fires();
}

// Runs the open step to its end whatever this rank missed, so that no other rank waits for it.
Outcome<Ok> Reducer::finish(bool was_reset) {
  gate_.close();
  end_pass(true);
  is_window_over_ = true;
  // Of a deferred pass nothing was contributed yet; of another, what did not come often enough.
  for (uint32_t id = 0; id < tensors_.size(); ++id)
    if (is_deferred_ || readiness_->owed(id) != 0) contribute(id, window_.used(id));
  const Complaints complaints = complaints_of_step(was_reset);
  tell_news(complaints);
  if (host_.size > 1)
    host_.engine->wake();
  else
    host_.engine->submit(collective_, false);
  // A shard stays where it is.
  if (config_.arena || config_.is_sharded || complaints.is_any())
    host_.engine->wait(collective_, kNever);  // bounded by the collective's time-out
  else
    wait_and_copy_out();

  Outcome<Ok> outcome = judge(complaints);
  if (outcome.is_ok()) outcome = check_results();
  phase_ = outcome.is_ok() ? Phase::idle : Phase::failed;
  ++step_;
  if (outcome.is_ok()) {
    put_back_unused();
    if (is_learning_ && !is_shadow_) learn();
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
  if (!config_.is_nonfinite_error) return complaints;
  for (uint32_t b = 0; b < plan_.buckets.size() && complaints.nonfinite.empty(); ++b)
    for (const uint32_t id : plan_.buckets[b].tensors) {
      // relaxed: whoever stored it is out of the gate.
      if (!is_nonfinite_[id].load(std::memory_order_relaxed)) continue;
      complaints.nonfinite.push_back(id);
      complaints.nonfinite_bucket = b;
    }
  return complaints;
}

// Sums of finite gradients may not be. All ranks have the same sums, and so the same answer.
Outcome<Ok> Reducer::check_results() const {
  if (!config_.is_nonfinite_error) return Ok{};
  for (uint32_t b = 0; b < plan_.buckets.size(); ++b) {
    const Bucket& bucket = plan_.buckets[b];
    if (!is_finite(bucket.dtype, arena_.base() + bucket.arena_offset, bucket.numel))
      return Failure{NORIA_E_NONFINITE,
                     "step " + std::to_string(step_) + " failed: the sums in bucket " +
                         std::to_string(b) + " of " + names_of(bucket.tensors, tensors_) +
                         " are not finite, though all gradients are: scale the loss down, or use "
                         "a wider dtype"};
  }
  return Ok{};
}

// This rank's part of the news is ready with it.
void Reducer::tell_news(const Complaints& complaints) {
  news_[kNewsVerdict] = verdict_of(complaints);
  news_[kNewsLive] = is_shadow_ && !window_.is_any_used() ? 0 : 1;
  for (uint32_t id = 0; id < tensors_.size() && keeps_; ++id)
    news_[kNewsUsed + id] = window_.used(id) ? 1 : 0;
  for (uint32_t s = first_news_segment_; s < collective_.segments.size(); ++s) readiness_->take(s);
}

void Reducer::put_back_unused() {
  for (uint32_t id = 0; id < kept_.size(); ++id) {
    if (!kept_[id].empty() && !is_used_by_any(id))
      std::copy(kept_[id].begin(), kept_[id].end(), arena_.base() + readiness_->home(id).offset);
    kept_[id].clear();
  }
}

// All ranks share the verdict, so that either none of them or every one asks for the reasons.
Outcome<Ok> Reducer::judge(const Complaints& mine) const {
  if (collective_.failure.code != NORIA_OK) return collective_.failure;
  if (news_[kNewsVerdict] == 0) return Ok{};
  NORIA_TRY_ASSIGN(const auto descriptions,
                   gather(collective_.timeout_ns)("step verdict", describe(mine, tensors_)));
  return compose_failure(news_[kNewsVerdict], step_, descriptions);
}

// A bucket's results are copied as soon as they are there, while later buckets are on the wire. If
// the step fails all the same, what was copied is as undefined as the rest.
void Reducer::wait_and_copy_out() {
  constexpr Nanoseconds kLook = 1_ms;  // short beside a bucket's copy, long beside a look
  size_t copied = 0;
  bool is_done = false;
  while (!is_done) {
    is_done = host_.engine->wait(collective_, now_ns() + kLook);
    if (is_done && collective_.failure.code != NORIA_OK) return;
    while (copied < plan_.buckets.size() && (is_done || has_result(copied)))
      copy_out(plan_.buckets[copied++]);
  }
}

// Of a bucket without bytes nothing ever ends.
bool Reducer::has_result(size_t bucket) {
  return plan_.buckets[bucket].bytes == 0 || collective_.parts[bucket].has_ended();
}

// Of what this rank did not bring, nobody knows where the result should go: result() shows it. What
// result() delivered may have been changed since.
void Reducer::copy_out(const Bucket& bucket) {
  for (const uint32_t id : bucket.tensors) {
    const Readiness::Home& home = readiness_->home(id);
    const ArenaRange part = part_in_bucket(bucket, home.range());
    // relaxed: whoever stored them is out of the gate.
    if (part.bytes() == 0 || !window_.used(id) || is_delivered_[id].load(std::memory_order_relaxed))
      continue;
    std::memcpy(sources_[id].load(std::memory_order_relaxed) + (part.begin - home.offset),
                arena_.base() + part.begin, part.bytes());
  }
}

noria_step_info Reducer::describe_step(Nanoseconds ended_ns) {
  for (size_t b = 0; b < plan_.buckets.size(); ++b) {
    const Part& part = collective_.parts[b];
    const BucketTimes::Times given = times_.times(b);  // after gate_.close()
    infos_[b].first_ns = given.first;
    infos_[b].queued_ns = given.queued;
    infos_[b].ready_ns = given.last;
    infos_[b].start_ns = part.start_ns;
    infos_[b].end_ns = part.end_ns;
    infos_[b].wire_ns = part.wire_ns;
  }
  noria_step_info info = step_info(step_ - 1, begun_ns_, ended_ns, infos_);
  info.wire_bytes = moved_bytes() - moved_before_;
  info.order_wait_ns = order_wait_ns(info.last_gradient_ns);
  return info;
}

void Reducer::show_step(bool is_good) {
  if (is_good)
    host_.timeline->on_step(seal_number_, *last_step_, infos_);
  else
    host_.timeline->on_failed_step();
}

uint64_t Reducer::moved_bytes() const {
  const transport::Domain* domain = host_.engine->domain();
  if (domain == nullptr) return 0;
  return domain->counted(Counter::bytes_sent) + domain->counted(Counter::bytes_read);
}

}  // namespace noria::bucketing
