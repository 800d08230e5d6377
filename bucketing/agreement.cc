#include "bucketing/agreement.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <optional>
#include <string_view>

#include "bucketing/kernels.hpp"
#include "bucketing/segments.hpp"

namespace noria::bucketing {
namespace {

constexpr size_t kShownValues = 4;  // a text is for people
constexpr size_t kShownRanks = 8;

// What must agree apart from the tensors themselves, in the order in which it is compared. A field
// goes to the end of the list: the version stays first, so that other versions can be told.
enum Fact : size_t {
  version,
  bucket_bytes,
  first_bucket_bytes,
  op,
  chunk_bytes,
  chunk_align,
  plan,
  last_bucket_bytes,
  order,
  average,
  wire_dtype,
  given_plan,
  unused,
  static_graph,
  nonfinite,
  shard,
  hooks,
  device_kind,
  tensor_count,
  tensor_hash,
  kFacts
};
constexpr std::array<const char*, tensor_count> kFactNames{"the version of noria",
                                                           "bucket_bytes",
                                                           "first_bucket_bytes",
                                                           "op",
                                                           "the ring's chunk",
                                                           "the ring's alignment",
                                                           "plan",
                                                           "last_bucket_bytes",
                                                           "order",
                                                           "average",
                                                           "wire_dtype",
                                                           "the loaded plan",
                                                           "unused",
                                                           "static_graph",
                                                           "nonfinite",
                                                           "shard",
                                                           "hooks",
                                                           "device_kind"};
static_assert(kFactNames.back() != nullptr, "each fact has its name");

using Facts = std::array<uint64_t, kFacts>;

Facts facts_of(const TensorTable& tensors, const ReducerConfig& config) {
  Facts facts{};
  facts[version] = NORIA_VERSION_MAJOR * 10000 + NORIA_VERSION_MINOR * 100 + NORIA_VERSION_PATCH;
  facts[bucket_bytes] = config.caps.bucket_bytes;
  facts[first_bucket_bytes] = config.caps.first_bucket_bytes;
  facts[op] = static_cast<uint64_t>(config.op);
  facts[chunk_bytes] = kChunkBytes;
  facts[chunk_align] = kChunkAlign;
  facts[plan] = static_cast<uint64_t>(config.plan);
  facts[last_bucket_bytes] = config.caps.last_bucket_bytes;
  facts[order] = static_cast<uint64_t>(config.order);
  facts[average] = static_cast<uint64_t>(config.average);
  facts[wire_dtype] = static_cast<uint64_t>(config.wire_dtype);
  facts[given_plan] = config.given_plan;
  facts[unused] = config.unused;
  facts[static_graph] = config.static_graph ? 1 : 0;
  facts[nonfinite] = config.is_nonfinite_error ? 1 : 0;
  facts[shard] = config.is_sharded ? 1 : 0;
  facts[hooks] = config.hooks;
  facts[device_kind] = config.is_on_device ? NORIA_STREAM_CUDA : NORIA_STREAM_HOST;
  facts[tensor_count] = tensors.size();
  facts[tensor_hash] = tensors.hash(0, tensors.size());
  return facts;
}

template <class T>
std::string to_bytes(const T& value) {
  return std::string(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
T from_bytes(std::string_view bytes) {  // what is absent reads as zero
  T value{};
  std::memcpy(&value, bytes.data(), std::min(bytes.size(), sizeof value));
  return value;
}

bool all_equal(const std::vector<std::string>& values) {
  return std::adjacent_find(values.begin(), values.end(), std::not_equal_to<>()) == values.end();
}

Failure mismatch(const std::string& what, const std::vector<std::string>& values,
                 const std::string& advice) {
  return Failure{NORIA_E_MISMATCH,
                 "the ranks differ in " + what + ": " + values_by_rank(values) + "; " + advice};
}

constexpr const char* kSameTensors = "register the same tensors in the same order on every rank";

// Bits of BucketHooks::moments().
std::string hooks_text(uint64_t moments) {
  constexpr std::array<const char*, 4> kTexts{"none", "before", "after", "before and after"};
  return moments < kTexts.size() ? kTexts[moments] : std::to_string(moments);
}

std::string value_text(size_t fact, uint64_t value) {
  switch (fact) {
    case op: return op_name(static_cast<noria_op>(value));
    case plan: return plan_name(static_cast<PlanKind>(value));
    case hooks: return hooks_text(value);
    case given_plan: return value == 0 ? "none" : "one with fingerprint " + std::to_string(value);
    default: return std::to_string(value);
  }
}

// The first fact that differs; the tensors' own differences are looked for elsewhere.
std::optional<Failure> differing_fact(const std::vector<Facts>& ranks) {
  for (size_t fact = 0; fact < tensor_count; ++fact) {
    std::vector<std::string> values;
    for (const Facts& facts : ranks) values.push_back(value_text(fact, facts[fact]));
    if (!all_equal(values))
      return mismatch(kFactNames[fact], values, "create the reducer alike on every rank");
  }
  return std::nullopt;
}

// Of [first, first + count), the block of tensors that comes first among those that differ.
struct Range {
  uint32_t first = 0;
  uint32_t count = 0;
};
constexpr uint32_t kBlocks = 256;  // hashes of 2 KiB a rank and round

Outcome<Range> first_differing_block(const TensorTable& tensors, Range range,
                                     const Gather& gather) {
  const uint32_t per_block = div_up(range.count, kBlocks);
  std::array<uint64_t, kBlocks> hashes{};
  for (uint32_t b = 0; b < kBlocks; ++b) {
    const uint32_t skipped = std::min(range.count, b * per_block);
    hashes[b] = tensors.hash(range.first + skipped, std::min(per_block, range.count - skipped));
  }
  NORIA_TRY_ASSIGN(const auto all, gather("reducer seal, hashes of tensors", to_bytes(hashes)));
  std::vector<decltype(hashes)> ranks;
  for (const std::string& bytes : all) ranks.push_back(from_bytes<decltype(hashes)>(bytes));
  for (uint32_t b = 0; b < kBlocks; ++b) {
    const bool differs = std::any_of(ranks.begin(), ranks.end(),
                                     [&](const auto& rank) { return rank[b] != ranks[0][b]; });
    const uint32_t skipped = std::min(range.count, b * per_block);
    if (differs) return Range{range.first + skipped, std::min(per_block, range.count - skipped)};
  }
  return Range{range.first + range.count, 0};
}

// The failure that names the first tensor in which the ranks differ; or the gather's. All ranks
// walk alike, because they look at the same gathered hashes.
Failure differing_tensor(const TensorTable& tensors, const std::vector<Facts>& ranks,
                         const Gather& gather) {
  uint64_t common = UINT32_MAX;
  for (const Facts& facts : ranks) common = std::min(common, facts[tensor_count]);
  Range range{.first = 0, .count = static_cast<uint32_t>(common)};
  do {
    NORIA_TRY_ASSIGN(range, first_differing_block(tensors, range, gather));
  } while (range.count > 1);

  // Past the common tensors there is one that only some ranks have.
  const uint32_t id = range.first;
  NORIA_TRY_ASSIGN(const auto values, gather("reducer seal, the tensor that differs",
                                             id < tensors.size() ? tensors.describe(id) : "none"));
  return mismatch("tensor " + std::to_string(id), values, kSameTensors);
}

std::string rank_list(const std::vector<size_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size() && i < kShownRanks; ++i)
    text += (i == 0 ? "" : ", ") + std::to_string(ranks[i]);
  if (ranks.size() > kShownRanks)
    text += " and " + std::to_string(ranks.size() - kShownRanks) + " more";
  return text;
}

}  // namespace

Outcome<Ok> agree(const TensorTable& tensors, const ReducerConfig& config, const Gather& gather) {
  const Facts mine = facts_of(tensors, config);
  NORIA_TRY_ASSIGN(const auto all, gather("reducer seal", to_bytes(mine)));
  if (all_equal(all)) return Ok{};
  std::vector<Facts> ranks;
  for (const std::string& bytes : all) ranks.push_back(from_bytes<Facts>(bytes));
  if (auto failure = differing_fact(ranks)) return std::move(*failure);
  return differing_tensor(tensors, ranks, gather);
}

Outcome<Ok> agree_on_success(const Outcome<Ok>& mine, const std::string& what,
                             const Gather& gather) {
  const std::string bytes =
      mine.is_ok() ? std::string() : to_bytes(mine.failure().code) + mine.failure().text;
  NORIA_TRY_ASSIGN(const auto all, gather(what, bytes));
  for (size_t rank = 0; rank < all.size(); ++rank) {
    if (all[rank].empty()) continue;
    const std::string_view text(all[rank]);
    const auto code = from_bytes<noria_status>(text);
    return Failure{code < 0 ? code : NORIA_E_INTERNAL,
                   "rank " + std::to_string(rank) + ": " +
                       std::string(text.substr(std::min(text.size(), sizeof(noria_status))))};
  }
  return Ok{};
}

std::string values_by_rank(const std::vector<std::string>& values) {
  std::vector<std::pair<std::string, std::vector<size_t>>> groups;  // in order of their first rank
  for (size_t rank = 0; rank < values.size(); ++rank) {
    const auto at = std::find_if(groups.begin(), groups.end(),
                                 [&](const auto& group) { return group.first == values[rank]; });
    if (at != groups.end())
      at->second.push_back(rank);
    else
      groups.push_back({values[rank], {rank}});
  }
  std::string text;
  for (size_t i = 0; i < groups.size() && i < kShownValues; ++i)
    text += (i == 0 ? "" : "; ") + groups[i].first + " on " + rank_list(groups[i].second);
  if (groups.size() > kShownValues)
    text += "; and " + std::to_string(groups.size() - kShownValues) + " more values";
  return text;
}

}  // namespace noria::bucketing
