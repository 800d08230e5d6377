// What is different in a step whose gradients lie on a device: they are noted and launched, and
// what the host does is the news alone.
#include <algorithm>
#include <string>

#include "bucketing/cuda_stream.hpp"
#include "bucketing/device_buckets.hpp"
#include "bucketing/lost_rank.hpp"
#include "bucketing/pause.hpp"
#include "bucketing/reducer.hpp"
#include "bucketing/reducer_words.hpp"

namespace noria::bucketing {

CallerStreams* Reducer::streams() const { return is_on_device() ? device_->streams() : nullptr; }

void Reducer::start_on_device() {
  if (const Outcome<Ok> begun = device_->restart(mode_.begun_ns); !begun)
    lose_device(begun.failure());
}

// The first of a communicator's failures counts, for all ranks and for good.
void Reducer::lose_device(const Failure& failure) {
  // relaxed: read by who calls next, or once the gate is closed.
  is_device_lost_.store(true, std::memory_order_relaxed);
  await_who_was_lost(*host_.engine, failure);
  host_.engine->fail({failure.code, "rank " + std::to_string(host_.rank) + ", step " +
                                        std::to_string(step_) + ": " + failure.text});
}

// ---- gradients ----------------------------------------------------------------------------------

Outcome<Ok> Reducer::give_on_device(uint32_t id, const void* grad, Consumer producer) {
  if (!gate_.enter_any()) [[unlikely]]
    return no_step_open("noria_grad_ready()");
  const LeaveOnExit inside{gate_};
  if (host_.engine->failed()) [[unlikely]]
    return host_.engine->failure();
  Readiness& readiness = *readiness_;
  if (id >= readiness.tensors()) [[unlikely]]
    return unknown_id(id, tensors_);
  const Readiness::Home& home = readiness.home(id);
  const bool is_pointer_good = config_.arena ? grad == nullptr || grad == gradients() + home.offset
                                             : grad != nullptr || home.bytes == 0;
  if (!is_pointer_good) [[unlikely]]
    return wrong_pointer(id, tensors_, config_.arena);
  // What comes too late says nothing new, and its bucket may be under way.
  if (readiness.owed(id) != 0) NORIA_TRY(device_->note(id, grad, producer));
  const Readiness::Fire fire = readiness.fire(id);
  if (fire == Readiness::Fire::late) [[unlikely]]
    return came_late(id, tensors_, *readiness_, config_.static_graph && !is_learning_);
  if (arrival_ != nullptr) [[unlikely]]
    arrival_->note(id);
  if (fire == Readiness::Fire::last && !mode_.is_deferred) take_stretches(home);
  return Ok{};
}

// What earlier passes of the window brought lies where it was; zeros where that is nothing.
void Reducer::contribute_on_device(uint32_t id, bool is_used) {
  const Readiness::Home& home = readiness_->home(id);
  if (!is_used && !host_.engine->failed())
    if (const Outcome<Ok> zeroed = device_->leave_out(id, home.range()); !zeroed)
      lose_device(zeroed.failure());
  take_stretches(home);
}

void Reducer::launch_on_device(uint32_t bucket) {
  if (host_.engine->failed() || is_device_lost_.load(std::memory_order_relaxed)) return;
  if (const Outcome<Ok> launched = device_->on_complete(bucket); !launched)
    lose_device(launched.failure());
}

// ---- results ------------------------------------------------------------------------------------

// The host looks again and again. What does not end on the device is the communicator's watch to
// see, which fails the engine. False: not before the deadline.
Outcome<bool> Reducer::wait_for_device(const std::function<Outcome<bool>()>& is_over,
                                       Nanoseconds deadline) const {
  const Pause pause(20_us);  // what it adds to a step at most
  while (true) {
    const Outcome<bool> answer = is_over();
    // An abort ends what is under way as well, and comes after the failure.
    if (host_.engine->failed()) return host_.engine->failure();
    NORIA_TRY_ASSIGN(const bool is_seen, answer);
    if (is_seen || now_ns() >= deadline) return is_seen;
    pause.take();
  }
}

// What NCCL is at the watch bounds; here is what comes before: streams that hold up the gradients.
// On this rank alone, and nothing is lost: behind them the device goes on.
Outcome<Ok> Reducer::wait_for_results() const {
  const Nanoseconds bound = collective_.timeout_ns;
  DeviceBuckets::Standing before, now;
  do {
    before = now;
    NORIA_TRY_ASSIGN(const bool is_there,
                     wait_for_device([this] { return device_->is_done(); }, now_ns() + bound));
    if (is_there) return Ok{};
    NORIA_TRY_ASSIGN(now, device_->look());
  } while (now.is_reducing || now.ended > before.ended);
  std::string text = host_.device.device->name() + " did not come to the end of the step within " +
                     std::to_string(bound / 1'000'000) + " ms";
  if (now.bucket)
    text += ": bucket " + std::to_string(*now.bucket) + " of " +
            names_of(plan_.buckets[*now.bucket].tensors, tensors_) + " waits for its gradients";
  if (now.producer) text += ", to which " + stream_name(*now.producer) + " has not come";
  return Failure{NORIA_E_TIMEOUT, text +
                                      "; their memory is in use until it has. NORIA_TIMEOUT_MS or "
                                      "step_timeout_ms is the bound"};
}

Outcome<Ok> Reducer::launch_rest(Consumer consumer) {
  if (host_.engine->failed()) return host_.engine->failure();
  // relaxed: the gate is closed.
  if (is_device_lost_.load(std::memory_order_relaxed))
    return Failure{NORIA_E_DEVICE, "the device was lost in this step"};
  Outcome<Ok> launched = device_->finish(consumer);
  if (!launched) lose_device(launched.failure());
  return launched;
}

// The news have gone round, and the device may fail, or be late, all the same.
Outcome<Ok> Reducer::finish_on_device(const Outcome<Ok>& launched, Consumer consumer,
                                      bool is_good) {
  if (host_.engine->failed()) return host_.engine->failure();
  auto ended = [&]() -> Outcome<Ok> {
    NORIA_TRY(launched);
    if (is_good && keeps_)
      NORIA_TRY(device_->put_back([this](uint32_t id) { return is_used_by_any(id); }, consumer));
    if (consumer) return Ok{};
    NORIA_TRY(wait_for_results());
    return device_->read_times();
  }();
  if (ended || (launched && ended.failure().code == NORIA_E_TIMEOUT)) return ended;
  if (launched) lose_device(ended.failure());
  // Whose failure counts rank 0 says: at once, or after it has looked for who died first.
  constexpr Nanoseconds kPatience = 5_s;
  const Pause pause;
  const Nanoseconds deadline = now_ns() + kPatience;
  while (!host_.engine->failed() && now_ns() < deadline) pause.take();
  return host_.engine->failed() ? host_.engine->failure() : ended;
}

// The results of the step that has ended, to whoever asks.
Outcome<Ok> Reducer::show_on_device(Consumer consumer) const {
  NORIA_TRY(device_->show_results(consumer));
  if (consumer) return Ok{};
  return wait_for_results();
}

// Of the step that has ended. In copy mode there is no other copy than the caller's.
Outcome<const void*> Reducer::device_result(uint32_t id, Consumer consumer) {
  if (!config_.arena && !config_.is_sharded && !window_.used(id))
    return Failure{NORIA_E_UNSUPPORTED,
                   "tensor " + tensors_.describe(id) +
                       ": this rank gave no gradient of it, so that its average has no place on "
                       "the device: give one of zeros, or set arena to 1"};
  NORIA_TRY(show_on_device(consumer));
  if (config_.is_sharded) return first_in_shards(id);
  if (config_.arena) return gradients() + records_.result_offsets[id];
  return reinterpret_cast<const void*>(device_->given(id));
}

// As early_result(): once the buckets are launched, the device knows what to wait for.
Outcome<const void*> Reducer::early_device_result(uint32_t id, Nanoseconds timeout,
                                                  Consumer consumer) {
  const Pause pause(200_us);  // short beside the time of a bucket
  const Readiness::Home& home = readiness_->home(id);
  if (!is_given(id)) return no_result_yet(id, 0);
  const Nanoseconds bound = timeout != 0 ? timeout : collective_.timeout_ns;
  const Nanoseconds deadline = now_ns() + bound;
  for (uint32_t s = home.first_stretch; s < home.end_stretch(); ++s) {
    const uint32_t bucket = readiness_->bucket_of(s);
    if (result_part(bucket, id).bytes() == 0) continue;
    while (!device_->is_launched(bucket)) {
      if (!gate_.is_open()) return ended_meanwhile(id, tensors_);
      if (host_.engine->failed()) return host_.engine->failure();
      if (now_ns() >= deadline) return no_result_yet(id, bound);
      // It may be complete since before its step's turn came, which nobody announces.
      if (const Outcome<Ok> launched = device_->launch_complete(); !launched) {
        lose_device(launched.failure());
        return launched.failure();
      }
      if (!device_->is_launched(bucket)) pause.take();
    }
    if (const Outcome<Ok> published = device_->publish(bucket, consumer); !published) {
      lose_device(published.failure());
      return published.failure();
    }
  }
  for (uint32_t s = home.first_stretch; s < home.end_stretch() && !consumer; ++s) {
    const uint32_t bucket = readiness_->bucket_of(s);
    if (result_part(bucket, id).bytes() == 0) continue;  // nor published
    NORIA_TRY_ASSIGN(const bool is_there,
                     wait_for_device([&] { return device_->is_published(bucket); }, deadline));
    if (!is_there) return no_result_yet(id, bound);
  }
  if (config_.is_sharded) return first_in_shards(id);
  if (config_.arena) return gradients() + home.offset;
  return reinterpret_cast<const void*>(device_->given(id));
}

}  // namespace noria::bucketing
