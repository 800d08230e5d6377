#include <algorithm>
#include <string>
#include <utility>

#include "base/fingerprint.hpp"
#include "bucketing/device_buckets.hpp"
#include "bucketing/kernels.hpp"
#include "bucketing/link_probe.hpp"
#include "bucketing/reducer.hpp"
#include "bucketing/shard.hpp"

namespace noria::bucketing {

namespace {

Outcome<Ok> refuse_integer_average(const TensorTable& tensors) {
  for (uint32_t id = 0; id < tensors.size(); ++id)
    if (is_integer(tensors[id].dtype))
      return Failure{NORIA_E_ARG, "tensor " + tensors.describe(id) +
                                      ": integers have no average; use NORIA_SUM, or a reducer of "
                                      "its own for it"};
  return Ok{};
}

uint32_t input_divisor(AverageMode average, uint32_t ranks) {
  switch (average) {
    case AverageMode::post: return 1;
    case AverageMode::pre: return ranks;
    case AverageMode::split_sqrt: return split_divisor(ranks);
  }
  return 1;
}

Outcome<Plan> first_plan(const std::optional<SavedPlan>& given, const ReducerConfig& config,
                         const TensorTable& tensors) {
  if (given) return plan_of(*given, tensors);
  return plan_buckets(config.plan, plan_tensors(tensors), reverse_registration(tensors.size()),
                      config.caps);
}

}  // namespace

Outcome<Ok> Reducer::seal() {
  if (phase_ != Phase::registering)
    return Failure{NORIA_E_STATE, "noria_reducer_seal() was called before"};
  const Gather ask_all = gather_among(host_, host_.start_timeout);
  ReducerConfig shared = config_;
  shared.given_plan = given_plan_ ? fingerprint_of(*given_plan_) : 0;
  shared.hooks = hooks_ != nullptr ? hooks_->moments() : 0;
  NORIA_TRY(agree(tensors_, shared, ask_all));
  // Not before: a rank that returned alone would leave the others waiting in agree().
  if (config_.op == NORIA_AVG) NORIA_TRY(refuse_integer_average(tensors_));

  NORIA_TRY_ASSIGN(plan_, first_plan(given_plan_, config_, tensors_));
  // Room for whatever order is observed; shards stay where they are.
  if (observes() && !config_.is_sharded)
    plan_.arena_bytes = most_arena_bytes(plan_tensors(tensors_));
  slots_ = slots_for(plan_);
  Outcome<Ok> made = make_arena(buckets_bytes(), &arena_);
  if (made.is_ok() && is_on_device()) made = device_->install(plan_);
  NORIA_TRY(agree_on_success(made, "reducer seal, memory", ask_all));

  make_tables();
  seal_number_ = host_.open_steps->take_number();
  NORIA_TRY(install_plan());
  describe_buckets();
  if (config_.plan == PlanKind::planned && !given_plan_) {
    NORIA_TRY_ASSIGN(link_, measure_link(host_, plan_.arena_bytes, ask_all,
                                         [this](uint64_t bytes) { return probe_us(bytes); }));
  }
  if (observes()) arrival_ = std::make_unique<Arrival>(tensors_.size());
  records_.views = plan_.offsets;
  is_sealed_ = true;
  phase_ = Phase::idle;
  return Ok{};
}

// What is kept of each tensor from step to step, whatever the plan.
void Reducer::make_tables() {
  const size_t copied = config_.arena || is_on_device() ? 0 : tensors_.size();
  records_.unclaimed.resize(config_.max_in_flight != 0 && !is_on_device() ? tensors_.size() : 0);
  records_.sources.reset(new std::atomic<std::byte*>[copied] {});
  records_.is_delivered.reset(new std::atomic<bool>[copied] {});
  const bool stay_here = (config_.arena || config_.is_sharded) && !is_on_device();
  records_.kept.resize(stay_here && keeps_ ? tensors_.size() : 0);
  records_.is_nonfinite.reset(
      new std::atomic<bool>[config_.is_nonfinite_error ? tensors_.size() : 0] {});
  window_.restart(tensors_.size());
}

void Reducer::expect_fires() {
  for (uint32_t id = 0; id < tensors_.size(); ++id)
    readiness_->expect(id, is_learning_ ? Readiness::kUncertain : records_.expected_fires[id]);
}

// On a device they lie there.
uint64_t Reducer::buckets_bytes() const {
  if (is_on_device()) return 0;
  return slots_ != nullptr ? slots_->bytes() : plan_.arena_bytes;
}

std::byte* Reducer::place_of(uint32_t bucket) const {
  return arena_.base() +
         (slots_ != nullptr ? slots_->offset_of(bucket) : plan_.buckets[bucket].arena_offset);
}

// `buckets` bytes of them, or of their slots.
ArenaLayout Reducer::layout_of(uint64_t buckets) const {
  ArenaLayout layout{.news = buckets};
  layout.wire = align_up(buckets + news_count() * sizeof(*news_.numbers), kBucketAlign);
  layout.bytes = layout.wire;
  if (travels_narrow())
    layout.bytes += buckets / dtype_bytes(NORIA_FLOAT32) * dtype_bytes(config_.wire_dtype);
  return layout;
}

void Reducer::travel_narrow(Part& part) const {
  part.wide = reinterpret_cast<float*>(part.out);
  const auto element = static_cast<uint64_t>(part.out - arena_.base()) / dtype_bytes(part.dtype);
  part.dtype = config_.wire_dtype;
  part.out = arena_.base() + layout_of(buckets_bytes()).wire + element * dtype_bytes(part.dtype);
  part.in = part.out;
}

void Reducer::add_bucket(uint32_t index) {
  const Bucket& bucket = plan_.buckets[index];
  std::byte* const base = place_of(index);
  collective_.parts.push_back(
      {.in = base,
       .out = base,
       .count = bucket.numel,
       .dtype = bucket.dtype,
       .op = config_.op,
       .input_divisor = input_divisor(config_.average, static_cast<uint32_t>(host_.size)),
       .in_region = arena_.region(),
       .out_region = arena_.region()});
  if (config_.is_sharded) {
    collective_.parts.back().phases = Phases::reduce;
    collective_.parts.back().edges = shard_edges(bucket, static_cast<uint32_t>(host_.size));
  }
  if (travels_narrow() && bucket.dtype == NORIA_FLOAT32) travel_narrow(collective_.parts.back());
}

// The buckets in launch order, unless they travel by the device, then the news, which lie behind
// them in the arena; of these the largest number of all ranks counts.
void Reducer::build_collective() {
  collective_.parts.clear();
  for (uint32_t b = 0; b < plan_.buckets.size() && !is_on_device(); ++b) add_bucket(b);
  std::byte* const news = arena_.base() + layout_of(buckets_bytes()).news;
  collective_.parts.push_back({.in = news,
                               .out = news,
                               .count = news_count(),
                               .dtype = NORIA_INT32,
                               .op = NORIA_MAX,
                               .in_region = arena_.region(),
                               .out_region = arena_.region()});
  news_.numbers = reinterpret_cast<int32_t*>(news);
  prepare(collective_, static_cast<uint32_t>(host_.size));
  // Steps of two reducers of one shape are told apart where ranks begin them in different order.
  Fingerprint fingerprint;
  fingerprint.add(collective_.fingerprint);
  fingerprint.add(seal_number_);
  collective_.fingerprint = fingerprint.value();
  collective_.timeout_ns =
      config_.step_timeout != 0 ? config_.step_timeout : host_.collective_timeout;

  collective_.is_waited_for = &progress_.is_waited_for;
  times_ = BucketTimes(plan_.buckets.size());
}

// What waits for gradients: as the ring cuts it, or a bucket at once where that is what a device
// is given; then what the ring carries behind the buckets.
std::vector<Segment> Reducer::step_segments() const {
  if (!is_on_device()) return collective_.segments;
  const auto buckets = static_cast<uint32_t>(plan_.buckets.size());
  std::vector<Segment> segments;
  for (uint32_t b = 0; b < buckets; ++b)
    if (const uint64_t numel = plan_.buckets[b].numel; numel != 0)
      segments.push_back({.part = b, .first = 0, .count = numel});
  for (const Segment& news : collective_.segments) {
    segments.push_back(news);
    segments.back().part += buckets;
  }
  return segments;
}

// After readiness_, which knows where tensors lie.
void Reducer::install_hooks() {
  if (hooks_ == nullptr) return;
  std::vector<ArenaRange> tensors, own;
  std::vector<std::byte*> places;
  for (uint32_t id = 0; id < tensors_.size(); ++id) tensors.push_back(readiness_->home(id).range());
  for (uint32_t b = 0; b < plan_.buckets.size(); ++b) {
    own.push_back(result_of(plan_.buckets[b]));
    places.push_back(place_of(b));
  }
  hooks_->install(plan_, tensors, own, places, collective_.segments);
}

void Reducer::describe_buckets() {
  infos_.clear();
  described_version_ = plan_version_;
  for (uint32_t b = 0; b < plan_.buckets.size(); ++b) {
    const Bucket& bucket = plan_.buckets[b];
    infos_.push_back({.struct_size = sizeof(noria_bucket_info),
                      .bucket = b,
                      .tensors = static_cast<uint32_t>(bucket.tensors.size()),
                      .dtype = bucket.dtype,
                      .bytes = bucket.bytes});
  }
}

}  // namespace noria::bucketing
