#include <string>

#include "bucketing/device_buckets.hpp"
#include "bucketing/kernels.hpp"
#include "bucketing/reducer.hpp"
#include "bucketing/reducer_words.hpp"
#include "bucketing/shard.hpp"

namespace noria::bucketing {

ArenaRange Reducer::result_of(const Bucket& bucket) const {
  if (config_.is_sharded)
    return shard_of(bucket, static_cast<uint32_t>(host_.rank), static_cast<uint32_t>(host_.size));
  return {bucket.arena_offset, bucket.arena_offset + bucket.bytes};
}

ArenaRange Reducer::result_part(uint32_t bucket, uint32_t id) const {
  return overlap(readiness_->home(id).range(), result_of(plan_.buckets[bucket]));
}

// Null where no element of the tensor is this rank's.
const void* Reducer::first_in_shards(uint32_t id) const {
  const Readiness::Home& home = readiness_->home(id);
  for (uint32_t s = home.first_stretch; s < home.end_stretch(); ++s) {
    const uint32_t bucket = readiness_->bucket_of(s);
    if (const ArenaRange part = result_part(bucket, id); part.bytes() != 0)
      return shard_place(bucket) + (part.begin - result_of(plan_.buckets[bucket]).begin);
  }
  return nullptr;
}

std::byte* Reducer::shard_place(uint32_t bucket) const {
  if (is_on_device()) return device_->shard(bucket);
  return arena_.base() + result_of(plan_.buckets[bucket]).begin;
}

Outcome<Ok> Reducer::check_sharded() const {
  if (!is_sealed_) return Failure{NORIA_E_STATE, "shards exist after noria_reducer_seal()"};
  if (!config_.is_sharded)
    return Failure{NORIA_E_STATE,
                   "this reducer has no shards: set shard to NORIA_SHARD_REDUCE_SCATTER in its "
                   "configuration"};
  return Ok{};
}

Outcome<noria_shard_info> Reducer::shard(uint32_t index) const {
  NORIA_TRY(check_sharded());
  if (index >= plan_.buckets.size())
    return Failure{NORIA_E_ARG, "no bucket has index " + std::to_string(index) + ": there are " +
                                    std::to_string(plan_.buckets.size())};
  const Bucket& bucket = plan_.buckets[index];
  const ArenaRange own = result_of(bucket);
  return noria_shard_info{.struct_size = sizeof(noria_shard_info),
                          .dtype = bucket.dtype,
                          .bucket_offset = bucket.arena_offset,
                          .bucket_bytes = bucket.bytes,
                          .offset = own.begin - bucket.arena_offset,
                          .bytes = own.bytes(),
                          .gradient = shard_place(index)};
}

Outcome<std::vector<noria_shard_range>> Reducer::shard_ranges() const {
  NORIA_TRY(check_sharded());
  std::vector<noria_shard_range> ranges;
  for (uint32_t b = 0; b < plan_.buckets.size(); ++b) {
    const Bucket& bucket = plan_.buckets[b];
    const uint64_t element = dtype_bytes(bucket.dtype);
    const ArenaRange own = result_of(bucket);
    for (const uint32_t id : bucket.tensors) {
      const ArenaRange part = result_part(b, id);
      if (part.bytes() == 0) continue;
      ranges.push_back({.struct_size = sizeof(noria_shard_range),
                        .bucket = b,
                        .tensor = id,
                        .dtype = bucket.dtype,
                        .first = (part.begin - readiness_->home(id).offset) / element,
                        .count = part.bytes() / element,
                        .offset = part.begin,
                        .gradient = shard_place(b) + (part.begin - own.begin)});
    }
  }
  return ranges;
}

Outcome<uint64_t> Reducer::offset_of(uint32_t id) const {
  if (!is_sealed_) return Failure{NORIA_E_STATE, "offsets exist after noria_reducer_seal()"};
  if (id >= tensors_.size()) return unknown_id(id, tensors_);
  return readiness_->home(id).offset;
}

namespace {

// Where a bucket's elements lie in memory that is laid out as the gradients, of `dtype`.
std::byte* place_in(std::byte* memory, const Bucket& bucket, noria_dtype dtype) {
  return memory + bucket.arena_offset / dtype_bytes(bucket.dtype) * dtype_bytes(dtype);
}

// The element of which all gradients are, where there is one.
Outcome<uint32_t> common_element(const Plan& plan) {
  uint32_t element = 0;
  for (const Bucket& bucket : plan.buckets) {
    const uint32_t mine = dtype_bytes(bucket.dtype);
    if (element != 0 && mine != element)
      return Failure{NORIA_E_UNSUPPORTED,
                     "noria_reducer_all_gather_as: elements of gradients differ in size, so that "
                     "no layout follows from theirs: make a reducer for each dtype"};
    element = mine;
  }
  return element;
}

}  // namespace

Outcome<Ok> Reducer::all_gather(std::byte* memory, uint64_t bytes,
                                std::optional<noria_dtype> dtype) {
  NORIA_TRY(check_sharded());
  uint64_t wanted = plan_.arena_bytes;
  if (dtype) {
    if (dtype_bytes(*dtype) == 0)
      return Failure{NORIA_E_ARG, "noria_reducer_all_gather_as: dtype " + std::to_string(*dtype) +
                                      " is none: see noria_dtype"};
    NORIA_TRY_ASSIGN(const uint32_t element, common_element(plan_));
    if (element != 0) wanted = wanted / element * dtype_bytes(*dtype);
  }
  if (bytes != wanted)
    return Failure{NORIA_E_ARG, "noria_reducer_all_gather: " + std::to_string(bytes) +
                                    " bytes are not laid out as the " + std::to_string(wanted) +
                                    " of this reducer"};
  if (host_.open_steps->any())
    return Failure{NORIA_E_STATE,
                   "noria_reducer_all_gather: a step of a reducer is open on this communicator: "
                   "end it before"};
  if (is_on_device()) return gather_on_device(memory, dtype);
  const transport::Region* const region = gathered_region(memory, bytes);
  Collective gathering;
  gathering.kind = Kind::all_gather;
  for (const Bucket& bucket : plan_.buckets) {
    const noria_dtype given = dtype.value_or(bucket.dtype);
    std::byte* const base = place_in(memory, bucket, given);
    std::vector<uint64_t> edges = shard_edges(bucket, static_cast<uint32_t>(host_.size));
    const uint64_t first = edges[static_cast<size_t>(host_.rank)];
    gathering.parts.push_back({.in = base + first * dtype_bytes(given),
                               .out = base,
                               .count = bucket.numel,
                               .dtype = given,
                               .phases = Phases::gather,
                               .edges = std::move(edges),
                               .in_region = region,
                               .out_region = region});
  }
  prepare(gathering, static_cast<uint32_t>(host_.size));
  return host_.engine->run(gathering);
}

Outcome<Ok> Reducer::gather_on_device(std::byte* memory, std::optional<noria_dtype> dtype) {
  if (host_.engine->failed()) return host_.engine->failure();
  if (bytes() == 0 || host_.size == 1) return Ok{};
  NORIA_TRY(host_.device.device->check_memory("noria_reducer_all_gather: memory", memory));
  std::vector<DeviceBuckets::Gathering> gatherings;
  for (const Bucket& bucket : plan_.buckets) {
    const noria_dtype given = dtype.value_or(bucket.dtype);
    if (bucket.numel != 0)
      gatherings.push_back({place_in(memory, bucket, given), given,
                            shard_edges(bucket, static_cast<uint32_t>(host_.size))});
  }
  auto gathered = [&]() -> Outcome<Ok> {
    NORIA_TRY(device_->gather(gatherings));
    // The watch sees to each; what NCCL waits for here is a step that did not end in time.
    const Nanoseconds bound = static_cast<Nanoseconds>(gatherings.size()) * collective_.timeout_ns;
    NORIA_TRY_ASSIGN(const bool is_there,
                     wait_for_device([this] { return device_->is_gathered(); }, now_ns() + bound));
    if (is_there) return Ok{};
    return Failure{NORIA_E_TIMEOUT,
                   "noria_reducer_all_gather: " + host_.device.device->name() +
                       " has not come to it in time: a step before it has not ended there"};
  }();
  if (!gathered) lose_device(gathered.failure());
  return gathered;
}

// Parameters are gathered step after step, so that their memory stays registered. Null where it
// cannot be: the ring then tries by itself, and what it finds is every rank's failure.
const transport::Region* Reducer::gathered_region(std::byte* memory, uint64_t bytes) {
  transport::Domain* const domain = host_.engine->domain();
  if (domain == nullptr || bytes == 0) return nullptr;
  if (gathered_.is_valid() && gathered_.base() == memory && gathered_.bytes() == bytes)
    return &gathered_;
  gathered_ = {};
  auto region = domain->register_region(memory, bytes);
  if (!region.is_ok()) return nullptr;
  gathered_ = std::move(region).value();
  return &gathered_;
}

}  // namespace noria::bucketing
