// A step of DeviceBuckets: gradients noted, buckets launched, results published.
#include <algorithm>

#include "bucketing/device_buckets.hpp"
#include "bucketing/kernels.hpp"

namespace noria::bucketing {
namespace {

// The legacy default stream by its name that is not null.
cuda::Stream named(cuda::Stream stream) {
  return stream == cuda::legacy_stream() ? reinterpret_cast<cuda::Stream>(uintptr_t{1}) : stream;
}

// A thread's own default stream, for other threads to wait for: the legacy one, which comes behind
// every blocking stream of the context, and all such are.
std::optional<cuda::Stream> known_to_all(std::optional<cuda::Stream> stream) {
  return stream == cuda::per_thread_stream() ? cuda::legacy_stream() : stream;
}

}  // namespace

Outcome<Ok> DeviceBuckets::restart(Nanoseconds begun_ns) {
  if (has_ended_) {
    NORIA_TRY_ASSIGN(const bool is_over, is_done());
    if (is_over) NORIA_TRY(read_times());
  }
  has_ended_ = false;
  begun_ns_ = begun_ns;
  for (uint32_t b = 0; b < installed_->size; ++b)
    installed_->buckets[b].is_complete.store(installed_->buckets[b].numel == 0,
                                             std::memory_order_relaxed);
  NORIA_TRY_ASSIGN(const CudaDevice::Current current, device_.make_current());
  const SeatTaken seat(seat_);                // nobody is in a call
  next_.store(0, std::memory_order_relaxed);  // published by whatever lets callers in
  unpacked_ = 0;
  {
    const MutexLock lock(mutex_);
    kept_.restart();
  }
  for (uint32_t b = 0; b < installed_->size; ++b) installed_->buckets[b].is_published = false;
  return begun_->record(copy());
}

void DeviceBuckets::forget_producers() {
  for (uint32_t b = 0; b < installed_->size; ++b) installed_->buckets[b].producers.clear();
}

// ---- gradients ----------------------------------------------------------------------------------

Outcome<Ok> DeviceBuckets::note(uint32_t id, const void* grad,
                                std::optional<cuda::Stream> producer) {
  const auto address = reinterpret_cast<cuda::Pointer>(grad);
  // relaxed: what says that the bucket is complete publishes it.
  if (!config_.arena && given_[id].load(std::memory_order_relaxed) != address) [[unlikely]]
    NORIA_TRY(move_gradient(id, address));
  if (!producer) return Ok{};
  // The thread's own default stream means another one to whoever launches.
  const cuda::Stream stream = named(*producer);
  if (stream == cuda::per_thread_stream()) [[unlikely]]
    return wait_now(stream);
  for (const Seated& place : installed_->places_of(id))
    if (!installed_->buckets[place.bucket].producers.add(stream)) [[unlikely]]
      return wait_now(stream);
  return Ok{};
}

Outcome<Ok> DeviceBuckets::move_gradient(uint32_t id, cuda::Pointer address) {
  const Tensor& tensor = tensors_[id];
  if (tensor.numel == 0) return Ok{};
  const std::string name = "the gradient of tensor " + tensors_.describe(id);
  if (address % dtype_bytes(tensor.dtype) != 0)
    return Failure{NORIA_E_ARG, name + " is at an address that is no multiple of " +
                                    std::to_string(dtype_bytes(tensor.dtype)) +
                                    ", the size of its elements"};
  NORIA_TRY(device_.check_memory(name, reinterpret_cast<const void*>(address)));
  point_at(id, address);
  return Ok{};
}

void DeviceBuckets::point_at(uint32_t id, cuda::Pointer address) {
  given_[id].store(address, std::memory_order_relaxed);
  for (const Seated& place : installed_->places_of(id))
    if (auto& pack = installed_->buckets[place.bucket].pack) pack->point(place.slot, address);
}

// Of a stream that the launch could not ask, or has no room for: copy waits from here on.
Outcome<Ok> DeviceBuckets::wait_now(cuda::Stream producer) {
  NORIA_TRY_ASSIGN(const CudaDevice::Current current, device_.make_current());
  const MutexLock lock(mutex_);
  return hold_copy_back(producer, *written_now_);
}

Outcome<Ok> DeviceBuckets::hold_copy_back(cuda::Stream stream, CudaEvent& mark) const {
  NORIA_TRY(mark.record(stream));
  return mark.hold_back(copy());
}

// In the arena zeros stand where the gradient would, behind whatever reads the last results, or
// writes what is to be kept.
Outcome<Ok> DeviceBuckets::leave_out(uint32_t id, const ArenaRange& range) {
  if (range.bytes() == 0) return Ok{};
  if (!config_.arena) {
    point_at(id, 0);
    return Ok{};
  }
  NORIA_TRY_ASSIGN(const CudaDevice::Current current, device_.make_current());
  const MutexLock lock(mutex_);
  if (consumer_) NORIA_TRY(hold_copy_back(*consumer_, *written_now_));
  const cuda::Pointer view = arena_->pointer() + range.begin;
  if (config_.unused == NORIA_UNUSED_KEEP)
    NORIA_TRY(kept_.save({.id = id, .at = view, .bytes = range.bytes()}, copy()));
  return device_.api().call<&CudaSymbols::memory_set>(view, uint8_t{0}, range.bytes(), copy());
}

// ---- launches -----------------------------------------------------------------------------------

Outcome<Ok> DeviceBuckets::on_complete(uint32_t bucket) {
  installed_->buckets[bucket].is_complete.store(true);
  return launch_complete();
}

// Whoever finds the seat taken leaves its bucket to the holder, who looks again after leaving.
Outcome<Ok> DeviceBuckets::launch_complete() {
  uint32_t next = 0;
  do {
    if (!seat_.try_take()) return Ok{};
    // What is complete before is launched with the next bucket, by whoever waits for its result, or
    // by finish().
    const bool is_turn = turn_.steps->is_first(turn_.step);
    Outcome<Ok> launched = Ok{};
    if (is_turn) launched = lost_ ? Outcome<Ok>(*lost_) : launch_row();
    if (!launched) lost_ = launched.failure();
    next = next_.load(std::memory_order_relaxed);
    seat_.leave();
    if (!is_turn || !launched) return launched;
  } while (next < installed_->size && installed_->buckets[next].is_complete.load());
  return Ok{};
}

Outcome<Ok> DeviceBuckets::launch_row() {
  uint32_t next = next_.load(std::memory_order_relaxed);
  if (next == installed_->size || !installed_->buckets[next].is_complete.load()) return Ok{};
  NORIA_TRY_ASSIGN(const CudaDevice::Current current, device_.make_current());
  while (next < installed_->size && installed_->buckets[next].is_complete.load()) {
    NORIA_TRY(launch(next));
    next_.store(++next, std::memory_order_release);  // pairs with is_launched()
  }
  return Ok{};
}

Outcome<Ok> DeviceBuckets::launch(uint32_t index) {
  Travelling& bucket = installed_->buckets[index];
  if (bucket.numel == 0) return Ok{};
  if (bucket.pack && index >= installed_->slots)
    NORIA_TRY(unpack_to(index - installed_->slots + 1));
  NORIA_TRY(bucket.producers.each(
      [this](cuda::Stream producer) { return hold_copy_back(producer, *written_); }));
  if (bucket.pack) NORIA_TRY(bucket.pack->pack(copy(), slot_of(index)));
  if (ranks_ == 1) return Ok{};
  return reduce(bucket, bucket.pack ? slot_of(index) : bucket.in_arena);
}

// Behind what copy was given so far.
Outcome<Ok> DeviceBuckets::reduce(Travelling& bucket, cuda::Pointer place) {
  NORIA_TRY(bucket.packed->record(copy()));
  DeviceOperation& pair = host_.nccl->begin(timeout_);
  NORIA_TRY(pair.ready.record(copy()));
  auto* const memory = reinterpret_cast<std::byte*>(place);
  DevicePart part{
      .in = memory, .out = memory, .count = bucket.numel, .dtype = bucket.wire, .op = op()};
  if (config_.is_sharded) {
    part.out = memory + rank_ * bucket.block * dtype_bytes(bucket.wire);
    part.count = bucket.block;
    NORIA_TRY(host_.nccl->reduce_scatter(pair, part));
  } else {
    NORIA_TRY(host_.nccl->all_reduce(pair, part));
  }
  return bucket.reduced->record(host_.nccl->stream().handle());
}

Outcome<Ok> DeviceBuckets::unpack(uint32_t index) {
  Travelling& bucket = installed_->buckets[index];
  if (!bucket.pack) return Ok{};
  if (ranks_ > 1) NORIA_TRY(bucket.reduced->hold_back(copy()));
  return (bucket.own ? *bucket.own : *bucket.pack).unpack(copy(), slot_of(index));
}

Outcome<Ok> DeviceBuckets::unpack_to(uint32_t end) {
  for (; unpacked_ < end; ++unpacked_) NORIA_TRY(unpack(unpacked_));
  return Ok{};
}

// ---- results ------------------------------------------------------------------------------------

bool DeviceBuckets::is_launched(uint32_t bucket) const {
  return next_.load(std::memory_order_acquire) > bucket;
}

// Recorded once a step, so that nobody waits for what copy was given after it.
Outcome<Ok> DeviceBuckets::publish(uint32_t bucket, std::optional<cuda::Stream> consumer) {
  NORIA_TRY_ASSIGN(const CudaDevice::Current current, device_.make_current());
  {
    const SeatTaken seat(seat_);
    Travelling& shown = installed_->buckets[bucket];
    if (!shown.is_published) {
      NORIA_TRY(unpack_to(std::max(unpacked_, bucket + 1)));
      if (ranks_ > 1 && !shown.pack) NORIA_TRY(shown.reduced->hold_back(copy()));
      NORIA_TRY(shown.published->record(copy()));
      shown.is_published = true;
    }
    if (consumer) NORIA_TRY(shown.published->hold_back(*consumer));
  }
  return launch_complete();
}

Outcome<Ok> DeviceBuckets::finish(std::optional<cuda::Stream> consumer) {
  NORIA_TRY(launch_complete());
  NORIA_TRY_ASSIGN(const CudaDevice::Current current, device_.make_current());
  {
    const SeatTaken seat(seat_);  // nobody is in a call
    NORIA_TRY(unpack_to(installed_->size));
    NORIA_TRY(wait_for_last_reduction());
    NORIA_TRY(done_->record(copy()));
  }
  has_ended_ = true;
  const MutexLock lock(mutex_);
  consumer_ = known_to_all(consumer);
  if (consumer) NORIA_TRY(done_->hold_back(*consumer));
  return Ok{};
}

// The bucket's reduction has been waited for; who waits for results waits anew.
Outcome<Ok> DeviceBuckets::put_back(const std::function<bool(uint32_t)>& is_used,
                                    std::optional<cuda::Stream> consumer) {
  NORIA_TRY_ASSIGN(const CudaDevice::Current current, device_.make_current());
  const MutexLock lock(mutex_);
  NORIA_TRY_ASSIGN(const bool is_any, kept_.put_back(is_used, copy()));
  if (!is_any) return Ok{};
  NORIA_TRY(done_->record(copy()));
  return consumer ? done_->hold_back(*consumer) : Outcome<Ok>(Ok{});
}

// One rank records no packing: there a producer that is behind is all that can be seen.
Outcome<DeviceBuckets::Standing> DeviceBuckets::look() const {
  Standing standing;
  for (uint32_t b = 0; b < installed_->size && !standing.bucket; ++b) {
    const Travelling& bucket = installed_->buckets[b];
    if (bucket.numel == 0) continue;
    const Outcome<bool> packed = ranks_ > 1 ? bucket.packed->is_done() : Outcome<bool>(false);
    NORIA_TRY_ASSIGN(const bool is_packed, packed);
    if (!is_packed) {
      NORIA_TRY(find_late_producer(b, &standing));
      if (ranks_ > 1) standing.bucket = b;
      continue;
    }
    NORIA_TRY_ASSIGN(const bool is_reduced, bucket.reduced->is_done());
    standing.is_reducing |= !is_reduced;
    standing.ended += is_reduced ? 2 : 1;
  }
  return standing;
}

Outcome<Ok> DeviceBuckets::find_late_producer(uint32_t bucket, Standing* standing) const {
  NORIA_TRY_ASSIGN(const CudaDevice::Current current, device_.make_current());
  return installed_->buckets[bucket].producers.each([&](cuda::Stream producer) -> Outcome<Ok> {
    NORIA_TRY_ASSIGN(const bool is_idle, device_.api().ask<&CudaSymbols::stream_query>(producer));
    if (is_idle || standing->producer) return Ok{};
    standing->bucket = bucket;
    standing->producer = producer;
    return Ok{};
  });
}

Outcome<Ok> DeviceBuckets::show_results(std::optional<cuda::Stream> consumer) {
  if (!consumer) return Ok{};
  NORIA_TRY_ASSIGN(const CudaDevice::Current current, device_.make_current());
  return done_->hold_back(*consumer);
}

Outcome<Ok> DeviceBuckets::gather(std::span<const Gathering> parts) {
  NORIA_TRY_ASSIGN(const CudaDevice::Current current, device_.make_current());
  for (const Gathering& part : parts) {
    DeviceOperation& pair = host_.nccl->begin(timeout_);
    NORIA_TRY(pair.ready.record(copy()));
    const std::byte* const own = part.memory + part.edges[rank_] * dtype_bytes(part.dtype);
    NORIA_TRY(host_.nccl->all_gather_v(pair, {.in = own, .out = part.memory, .dtype = part.dtype},
                                       part.edges));
  }
  return mark_->record(host_.nccl->stream().handle());
}

Outcome<Ok> DeviceBuckets::start_probe(cuda::Pointer memory, uint64_t bytes) {
  NORIA_TRY_ASSIGN(const CudaDevice::Current current, device_.make_current());
  NORIA_TRY(begun_->record(copy()));
  DeviceOperation& pair = host_.nccl->begin(timeout_);
  NORIA_TRY(pair.ready.record(copy()));
  auto* const place = reinterpret_cast<void*>(memory);
  NORIA_TRY(
      host_.nccl->all_reduce(pair, {.in = place, .out = place, .count = bytes / sizeof(float)}));
  return done_->record(host_.nccl->stream().handle());
}

Outcome<double> DeviceBuckets::probe_us() const {
  NORIA_TRY_ASSIGN(const float ms, done_->elapsed_ms(*begun_));
  return static_cast<double>(ms) * 1e3;
}

// NCCL's stream is in order. What was unpacked has waited already.
Outcome<Ok> DeviceBuckets::wait_for_last_reduction() {
  if (ranks_ == 1) return Ok{};
  for (uint32_t b = installed_->size; b-- > 0;)
    if (installed_->buckets[b].numel != 0) return installed_->buckets[b].reduced->hold_back(copy());
  return Ok{};
}

// A bucket is on the wire from when it is packed, or NCCL is done with the one before.
Outcome<Ok> DeviceBuckets::read_times() {
  has_ended_ = false;
  const auto since_begin = [this](const CudaEvent& event) -> Outcome<Nanoseconds> {
    NORIA_TRY_ASSIGN(const float ms, event.elapsed_ms(*begun_));
    return begun_ns_ + static_cast<Nanoseconds>(static_cast<double>(std::max(ms, 0.0F)) * 1e6);
  };
  Nanoseconds before = 0;
  for (uint32_t b = 0; b < installed_->size && ranks_ > 1; ++b) {
    const Travelling& bucket = installed_->buckets[b];
    if (bucket.numel == 0) continue;
    NORIA_TRY_ASSIGN(const Nanoseconds packed, since_begin(*bucket.packed));
    NORIA_TRY_ASSIGN(const Nanoseconds reduced, since_begin(*bucket.reduced));
    const Nanoseconds start = std::max(packed, before);
    before = std::max(start, reduced);
    times_[b] = {.start_ns = start, .end_ns = before, .wire_ns = before - start};
  }
  return Ok{};
}

}  // namespace noria::bucketing
