#include <algorithm>
#include <string>

#include "bucketing/kernels.hpp"
#include "bucketing/reducer.hpp"
#include "bucketing/shard.hpp"

namespace noria::bucketing {

std::vector<uint64_t> Reducer::edges_of(const Bucket& bucket) const {
  return shard_edges(bucket.numel, static_cast<uint32_t>(host_.size), dtype_bytes(bucket.dtype));
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
  const std::vector<uint64_t> edges = edges_of(bucket);
  const auto rank = static_cast<size_t>(host_.rank);
  const uint64_t element = dtype_bytes(bucket.dtype);
  return noria_shard_info{.struct_size = sizeof(noria_shard_info),
                          .dtype = bucket.dtype,
                          .bucket_offset = bucket.arena_offset,
                          .bucket_bytes = bucket.bytes,
                          .offset = edges[rank] * element,
                          .bytes = (edges[rank + 1] - edges[rank]) * element,
                          .gradient = arena_.base() + bucket.arena_offset + edges[rank] * element};
}

Outcome<std::vector<noria_shard_range>> Reducer::shard_ranges() const {
  NORIA_TRY(check_sharded());
  std::vector<noria_shard_range> ranges;
  for (uint32_t b = 0; b < plan_.buckets.size(); ++b) {
    const Bucket& bucket = plan_.buckets[b];
    const uint64_t element = dtype_bytes(bucket.dtype);
    const std::vector<uint64_t> edges = edges_of(bucket);
    const auto rank = static_cast<size_t>(host_.rank);
    const ArenaRange own{bucket.arena_offset + edges[rank] * element,
                         bucket.arena_offset + edges[rank + 1] * element};
    for (const uint32_t id : bucket.tensors) {
      const Readiness::Home& home = readiness_->home(id);
      const ArenaRange tensor = part_in_bucket(bucket, {home.offset, home.offset + home.bytes});
      const uint64_t begin = std::max(own.begin, tensor.begin), end = std::min(own.end, tensor.end);
      if (begin >= end) continue;
      ranges.push_back({.struct_size = sizeof(noria_shard_range),
                        .bucket = b,
                        .tensor = id,
                        .dtype = bucket.dtype,
                        .first = (begin - home.offset) / element,
                        .count = (end - begin) / element,
                        .offset = begin,
                        .gradient = arena_.base() + begin});
    }
  }
  return ranges;
}

Outcome<uint64_t> Reducer::offset_of(uint32_t id) const {
  if (!is_sealed_) return Failure{NORIA_E_STATE, "offsets exist after noria_reducer_seal()"};
  if (id >= tensors_.size()) return unknown_id(id);
  return readiness_->home(id).offset;
}

Outcome<Ok> Reducer::all_gather(std::byte* memory, uint64_t bytes) {
  NORIA_TRY(check_sharded());
  if (bytes != plan_.arena_bytes)
    return Failure{NORIA_E_ARG, "noria_reducer_all_gather: " + std::to_string(bytes) +
                                    " bytes are not laid out as the " +
                                    std::to_string(plan_.arena_bytes) + " of this reducer"};
  if (host_.open_steps->any())
    return Failure{NORIA_E_STATE,
                   "noria_reducer_all_gather: a step of a reducer is open on this communicator: "
                   "end it before"};
  Collective gathering;
  gathering.kind = Kind::all_gather;
  for (const Bucket& bucket : plan_.buckets) {
    std::byte* const base = memory + bucket.arena_offset;
    std::vector<uint64_t> edges = edges_of(bucket);
    const uint64_t first = edges[static_cast<size_t>(host_.rank)];
    gathering.parts.push_back({.in = base + first * dtype_bytes(bucket.dtype),
                               .out = base,
                               .count = bucket.numel,
                               .dtype = bucket.dtype,
                               .phases = Phases::gather,
                               .edges = std::move(edges)});
  }
  prepare(gathering, static_cast<uint32_t>(host_.size));
  return host_.engine->run(gathering);
}

}  // namespace noria::bucketing
