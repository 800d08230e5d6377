#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

#include "base/units.hpp"
#include "bucketing/finite.hpp"
#include "bucketing/reducer.hpp"
#include "bucketing/reducer_words.hpp"

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

  mode_.begun_ns = now_ns();
  has_results_.store(false, std::memory_order_relaxed);  // published by gate_.open()
  ended_.reset();
  mode_.accumulates = accumulates;
  mode_.is_shadow = false;
  mode_.is_deferred = accumulates || is_learning_;
  mode_.is_unusual =
      mode_.is_deferred || arrival_ != nullptr || config_.is_nonfinite_error || slots_ != nullptr;
  readiness_->restart();
  if (hooks_ != nullptr) hooks_->restart(step_);
  if (arrival_ != nullptr) arrival_->restart();
  if (std::exchange(is_window_over_, false)) restart_window();
  if (!accumulates) start_collective();
  phase_ = Phase::open;
  is_on_device() ? gate_.open_unusual() : gate_.open();
  return Ok{};
}

void Reducer::start_collective() {
  records_.result_offsets = plan_.offsets;
  host_.open_steps->begin(this);
  times_.restart();  // published by gate_.open()
  mode_.moved_before = moved_bytes(*host_.engine);
  for (Part& part : collective_.parts) part.start_ns = part.end_ns = part.wire_ns = 0;
  if (is_on_device()) start_on_device();
  if (!config_.arena && !is_on_device())
    for (uint32_t id = 0; id < tensors_.size(); ++id)
      records_.is_delivered[id].store(false,
                                      std::memory_order_relaxed);  // published by gate_.open()
  for (uint32_t id = 0; id < tensors_.size() && config_.is_nonfinite_error; ++id)
    records_.is_nonfinite[id].store(false, std::memory_order_relaxed);  // likewise
  progress_.restart();
  for (std::vector<std::byte>& result : records_.unclaimed) result = {};
  if (slots_ != nullptr) slots_->restart();
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

// Touches what stands still while the step is open, and atomics.
std::string Reducer::owes() const {
  std::string running = hooks_ != nullptr ? hooks_->running() : std::string();
  if (!running.empty() || !gate_.is_open()) return running;
  std::vector<uint32_t> not_given;
  for (uint32_t id = 0; id < tensors_.size() && !mode_.is_deferred; ++id)
    if (readiness_->owed(id) != 0) not_given.push_back(id);
  if (!not_given.empty()) return "has not given " + names_of(not_given, tensors_);
  return "has not called noria_step_end()";
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
    return is_on_device() ? give_on_device(id, grad, {}) : no_step_open("noria_grad_ready()");
  const LeaveOnExit inside{gate_};
  Readiness& readiness = *readiness_;
  if (id >= readiness.tensors()) [[unlikely]]
    return unknown_id(id, tensors_);
  const Readiness::Home& home = readiness.home(id);
  const bool is_pointer_good = config_.arena
                                   ? grad == nullptr || grad == arena_.base() + home.offset
                                   : grad != nullptr || home.bytes == 0;
  if (!is_pointer_good) [[unlikely]]
    return wrong_pointer(id, tensors_, config_.arena);
  auto* const source = static_cast<std::byte*>(const_cast<void*>(grad));
  // step_end() writes the result where the gradient came from: the caller owns that memory.
  // relaxed: fire() publishes it.
  if (!config_.arena) records_.sources[id].store(source, std::memory_order_relaxed);
  const Readiness::Fire fire = readiness.fire(id);
  if (fire == Readiness::Fire::late) [[unlikely]]
    return came_late(id, tensors_, *readiness_, config_.static_graph && !is_learning_);
  const bool is_last = fire == Readiness::Fire::last;
  if (!is_last || mode_.is_unusual) [[unlikely]]
    give_unusually(id, source, is_last);
  else if (config_.arena)
    take_stretches(home);
  else
    copy_in(id, source);
  return Ok{};
}

void Reducer::give_unusually(uint32_t id, std::byte* grad, bool is_last) {
  if (arrival_ != nullptr) arrival_->note(id);
  if (!is_last || mode_.is_deferred) return;
  if (config_.arena) grad = arena_.base() + readiness_->home(id).offset;
  look_for_nonfinite(id, grad);
  if (slots_ != nullptr) {
    offer(id, grad, false);
    return finish_ended_buckets();
  }
  config_.arena ? take_stretches(readiness_->home(id)) : copy_in(id, grad);
}

// Before it is sent: afterwards sums of all ranks stand in its place.
void Reducer::look_for_nonfinite(uint32_t id, const std::byte* grad) {
  const Tensor& tensor = tensors_[id];
  if (config_.is_nonfinite_error && !is_finite(tensor.dtype, grad, tensor.numel))
    records_.is_nonfinite[id].store(true, std::memory_order_relaxed);  // read after gate_.close()
}

Outcome<Ok> Reducer::grad_unused(std::span<const uint32_t> ids) {
  if (!gate_.enter_any()) return no_step_open("noria_grad_unused()");
  const LeaveOnExit inside{gate_};
  for (const uint32_t id : ids)
    if (id >= readiness_->tensors()) return unknown_id(id, tensors_);
  for (const uint32_t id : ids) {
    if (!readiness_->close(id))
      return came_late(id, tensors_, *readiness_, config_.static_graph && !is_learning_);
    // Of what a static graph never uses start_collective() did.
    if (!mode_.is_deferred && readiness_->expected(id) != 0)
      contribute(id, readiness_->fires(id) > 0 || window_.used(id));
  }
  return Ok{};
}

// What earlier passes of the window, or fires of this one, brought; zeros where that is nothing.
void Reducer::contribute(uint32_t id, bool is_used) {
  if (is_on_device()) return contribute_on_device(id, is_used);
  const Readiness::Home& home = readiness_->home(id);
  // relaxed: the fire that stored it was acquired.
  std::byte* const grad = config_.arena ? arena_.base() + home.offset
                                        : records_.sources[id].load(std::memory_order_relaxed);
  if (is_used) look_for_nonfinite(id, grad);
  if (slots_ != nullptr) return offer(id, is_used ? grad : room_for_result(id), !is_used);
  if (is_used && !config_.arena) return copy_in(id, grad);
  std::byte* const slot = arena_.base() + home.offset;
  if (!is_used) {
    if (!records_.kept.empty()) records_.kept[id].assign(slot, slot + home.bytes);
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
  const uint32_t bucket = readiness_->bucket_of(stretch);
  times_.on_piece(bucket, given != 0 ? given : now, now);
  if (is_on_device()) {
    readiness_->see(stretch);
    return launch_on_device(bucket);
  }
  send_piece(bucket);
}

// A segment of the bucket is complete.
void Reducer::send_piece(uint32_t bucket) {
  if (hooks_ != nullptr && !hooks_->on_piece(bucket, readiness_->pending())) [[unlikely]]
    return;
  host_.engine->wake();
}

}  // namespace noria::bucketing
