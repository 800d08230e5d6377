// Life and plans of DeviceBuckets; what a step does stands in device_launch.cc.
#include <algorithm>
#include <numeric>
#include <utility>

#include "base/log.hpp"
#include "bucketing/collective.hpp"
#include "bucketing/device_buckets.hpp"
#include "bucketing/device_idle.hpp"
#include "bucketing/kernels.hpp"
#include "bucketing/shard.hpp"

namespace noria::bucketing {
namespace {

constexpr uint64_t kSlotAlign = 256;  // as cuMemAlloc()'s

template <class T>
Outcome<Ok> put(std::optional<T>* place, Outcome<T> made) {
  if (!made) return made.failure();
  place->emplace(std::move(*made));
  return Ok{};
}

}  // namespace

DeviceBuckets::DeviceBuckets(const DeviceHost& host, const ReducerConfig& config,
                             const Place& place, const TensorTable& tensors, const Turn& turn,
                             Nanoseconds timeout)
    : host_(host),
      device_(*host.device),
      config_(config),
      rank_(place.rank),
      ranks_(place.ranks),
      tensors_(tensors),
      turn_(turn),
      timeout_(timeout),
      kept_(device_) {}

DeviceBuckets::~DeviceBuckets() {
  if (!done_) return;
  if (!is_still_at_work([this](Nanoseconds patience) { return is_idle_within(patience); })) return;
  log(LogLevel::warn,
      "%s still works on a reducer's gradients, seconds after it was destroyed: their memory is "
      "not given back",
      device_.name().c_str());
  // For good, on purpose.
  static_cast<void>(installed_.release());
  if (arena_) arena_->keep_for_good();
  if (shards_) shards_->keep_for_good();
  const MutexLock lock(mutex_);
  static_cast<void>(new KeptViews(std::move(kept_)));
}

// Of what was put on the streams so far.
Outcome<bool> DeviceBuckets::is_idle_within(Nanoseconds patience) {
  {
    NORIA_TRY_ASSIGN(const CudaDevice::Current current, device_.make_current());
    if (ranks_ > 1) NORIA_TRY(hold_copy_back(host_.nccl->stream().handle(), *written_));
    NORIA_TRY(mark_->record(copy()));
  }
  return is_seen_within(patience, [this] { return mark_->is_done(); });
}

// ---- a plan -------------------------------------------------------------------------------------

noria_dtype DeviceBuckets::wire_of(noria_dtype dtype) const {
  const bool is_cast = config_.wire_dtype != 0 && dtype == NORIA_FLOAT32 && ranks_ > 1;
  return is_cast ? config_.wire_dtype : dtype;
}

bool DeviceBuckets::is_packed(const Bucket& bucket) const {
  if (ranks_ == 1) return config_.is_sharded && !config_.arena;
  return !config_.arena || config_.is_sharded || wire_of(bucket.dtype) != bucket.dtype ||
         op() != config_.op;
}

// NCCL's own average multiplies each value by the rounded inverse of the number of ranks.
noria_op DeviceBuckets::op() const {
  return config_.average == AverageMode::post ? config_.op : NORIA_SUM;
}

PackScale DeviceBuckets::scale() const {
  const auto ranks = static_cast<float>(ranks_);
  const auto first = static_cast<float>(split_divisor(ranks_));
  switch (config_.average) {
    case AverageMode::post: return {};
    case AverageMode::pre: return {.before = ranks};
    case AverageMode::split_sqrt: return {.before = first, .after = ranks / first};
  }
  return {};
}

Outcome<Ok> DeviceBuckets::install(const Plan& plan) {
  NORIA_TRY_ASSIGN(const CudaDevice::Current current, device_.make_current());
  NORIA_TRY(make_events());
  NORIA_TRY(make_arena(plan));
  auto made = std::make_unique<Installed>();
  made->size = static_cast<uint32_t>(plan.buckets.size());
  made->buckets.reset(new Travelling[made->size]);
  for (uint32_t b = 0; b < made->size; ++b) NORIA_TRY(make_bucket(plan, b, &made->buckets[b]));
  if (config_.is_sharded) NORIA_TRY(make_shards(plan, made.get()));
  find_places(plan, made.get());
  NORIA_TRY(make_slots(made.get()));
  if (installed_ != nullptr) {
    NORIA_TRY_ASSIGN(const bool is_idle, is_idle_within(timeout_));
    if (!is_idle) return Failure{NORIA_E_TIMEOUT, device_.name() + " did not end the step in time"};
  }
  installed_ = std::move(made);
  has_ended_ = false;  // its buckets are gone
  if (given_ == nullptr) given_.reset(new std::atomic<cuda::Pointer>[tensors_.size()] {});
  // Where results lie stays known, and what lies there is not asked about again.
  for (uint32_t id = 0; id < tensors_.size() && !config_.arena; ++id) point_at(id, given(id));
  times_.assign(installed_->size, {});
  return Ok{};
}

Outcome<Ok> DeviceBuckets::make_events() {
  if (done_) return Ok{};
  NORIA_TRY(put(&copy_, CudaStream::create(device_)));
  for (auto* event : {&written_, &mark_}) NORIA_TRY(put(event, CudaEvent::create(device_)));
  {
    const MutexLock lock(mutex_);
    NORIA_TRY(put(&written_now_, CudaEvent::create(device_)));
  }
  NORIA_TRY(put(&begun_, CudaEvent::create(device_, CudaEvent::Timing::with)));
  return put(&done_, CudaEvent::create(device_, CudaEvent::Timing::with));
}

// Zeroed, as the host's. NCCL is told of it where it reduces there.
Outcome<Ok> DeviceBuckets::make_arena(const Plan& plan) {
  if (!config_.arena || arena_) return Ok{};
  const uint64_t bytes = plan.arena_bytes;
  const bool is_packed_whole =
      std::all_of(plan.buckets.begin(), plan.buckets.end(),
                  [this](const Bucket& bucket) { return is_packed(bucket); });
  NORIA_TRY_ASSIGN(RegisteredMemory arena,
                   RegisteredMemory::allocate(device_, is_packed_whole ? nullptr : nccl(), bytes));
  if (bytes != 0)
    NORIA_TRY(
        device_.api().call<&CudaSymbols::memory_set>(arena.pointer(), uint8_t{0}, bytes, copy()));
  arena_.emplace(std::move(arena));
  NORIA_TRY_ASSIGN(const bool is_zeroed, is_idle_within(timeout_));
  if (is_zeroed) return Ok{};
  return Failure{NORIA_E_TIMEOUT, device_.name() + " did not zero the arena in time"};
}

Outcome<Ok> DeviceBuckets::make_bucket(const Plan& plan, uint32_t index, Travelling* made) {
  const Bucket& bucket = plan.buckets[index];
  made->wire = wire_of(bucket.dtype);
  made->numel = bucket.numel;
  if (config_.arena) made->in_arena = arena_->pointer() + bucket.arena_offset;
  NORIA_TRY(put(&made->packed, CudaEvent::create(device_, CudaEvent::Timing::with)));
  NORIA_TRY(put(&made->reduced, CudaEvent::create(device_, CudaEvent::Timing::with)));
  NORIA_TRY(put(&made->published, CudaEvent::create(device_)));
  if (!is_packed(bucket) || bucket.numel == 0) return Ok{};
  std::vector<PackTensor> tensors;
  for (const uint32_t id : bucket.tensors) {
    const uint64_t element = dtype_bytes(bucket.dtype);
    const ArenaRange whole{plan.offsets[id], plan.offsets[id] + tensors_[id].numel * element};
    const ArenaRange part = part_in_bucket(bucket, whole);
    tensors.push_back({.first = (part.begin - whole.begin) / element,
                       .count = part.bytes() / element,
                       .at = (part.begin - bucket.arena_offset) / element});
  }
  NORIA_TRY(
      put(&made->pack, DevicePack::create(device_, tensors, bucket.dtype, made->wire, scale())));
  for (uint32_t slot = 0; slot < bucket.tensors.size() && config_.arena; ++slot)
    made->pack->point(slot, arena_->pointer() + plan.offsets[bucket.tensors[slot]]);
  return Ok{};
}

void DeviceBuckets::find_places(const Plan& plan, Installed* made) const {
  std::vector<std::vector<Seated>> places(tensors_.size());
  for (uint32_t b = 0; b < made->size; ++b)
    for (uint32_t slot = 0; slot < plan.buckets[b].tensors.size(); ++slot)
      if (const uint32_t id = plan.buckets[b].tensors[slot]; tensors_[id].numel != 0)
        places[id].push_back({.bucket = b, .slot = slot});
  for (const std::vector<Seated>& of_tensor : places) {
    made->first_places.push_back(static_cast<uint32_t>(made->places.size()));
    made->places.insert(made->places.end(), of_tensor.begin(), of_tensor.end());
  }
  made->first_places.push_back(static_cast<uint32_t>(made->places.size()));
}

// In the arena shards lie in their buckets; else side by side, in the order of the layout, which
// does not change with the order of launching.
Outcome<Ok> DeviceBuckets::place_shards(const Plan& plan, Installed* made) {
  std::vector<uint32_t> in_layout(made->size);
  std::iota(in_layout.begin(), in_layout.end(), 0);
  std::sort(in_layout.begin(), in_layout.end(), [&](uint32_t a, uint32_t b) {
    return std::pair(plan.buckets[a].arena_offset, plan.buckets[a].bytes) <
           std::pair(plan.buckets[b].arena_offset, plan.buckets[b].bytes);
  });
  std::vector<uint64_t> places(made->size);
  uint64_t bytes = 0;
  for (const uint32_t b : in_layout) {
    places[b] = bytes;
    bytes += align_up(shard_of(plan.buckets[b], rank_, ranks_).bytes(), kSlotAlign);
  }
  if (!config_.arena && !shards_) NORIA_TRY(put(&shards_, DeviceMemory::allocate(device_, bytes)));
  for (uint32_t b = 0; b < made->size; ++b)
    made->buckets[b].shard =
        config_.arena ? arena_->pointer() + shard_of(plan.buckets[b], rank_, ranks_).begin
                      : shards_->pointer() + places[b];
  return Ok{};
}

Outcome<Ok> DeviceBuckets::make_shards(const Plan& plan, Installed* made) {
  NORIA_TRY(place_shards(plan, made));
  for (uint32_t b = 0; b < made->size; ++b) {
    const Bucket& bucket = plan.buckets[b];
    Travelling& travelling = made->buckets[b];
    const ArenaRange own = shard_of(bucket, rank_, ranks_);
    const uint64_t element = dtype_bytes(bucket.dtype);
    travelling.block = shard_begin(bucket, 1, ranks_);
    if (!travelling.pack) continue;
    const PackTensor whole{.first = 0,
                           .count = own.bytes() / element,
                           .at = (own.begin - bucket.arena_offset) / element};
    NORIA_TRY(put(&travelling.own, DevicePack::create(device_, {&whole, 1}, bucket.dtype,
                                                      travelling.wire, scale())));
    travelling.own->point(0, travelling.shard);
  }
  return Ok{};
}

// As many as are used at once, each for the largest bucket.
Outcome<Ok> DeviceBuckets::make_slots(Installed* made) const {
  for (uint32_t b = 0; b < made->size; ++b) {
    const Travelling& bucket = made->buckets[b];
    const uint64_t elements = std::max(bucket.numel, bucket.block * ranks_);
    if (bucket.pack)
      made->slot_bytes =
          std::max(made->slot_bytes, align_up(elements * dtype_bytes(bucket.wire), kSlotAlign));
  }
  made->slots = std::max(1U, std::min(config_.max_in_flight, made->size));
  return put(&made->memory,
             RegisteredMemory::allocate(device_, nccl(), made->slot_bytes * made->slots));
}

}  // namespace noria::bucketing
