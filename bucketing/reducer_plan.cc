// How a reducer comes by its plan, and by a better one after the step that it observed.
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "base/value_text.hpp"
#include "bucketing/device_buckets.hpp"
#include "bucketing/link_probe.hpp"
#include "bucketing/plan_timed.hpp"
#include "bucketing/reducer.hpp"

namespace noria::bucketing {

// ---- before the first step ----------------------------------------------------------------------

namespace {

constexpr uint64_t kMostPlanBytes = 1_GiB;

Failure file_failure(const std::string& what, const std::string& path) {
  return Failure{NORIA_E_ARG, what + " " + printable(path) + ": " + std::strerror(errno)};
}

struct CloseFile {
  void operator()(FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<FILE, CloseFile>;

Outcome<std::string> read_file(const std::string& path) {
  const File file(std::fopen(path.c_str(), "re"));
  if (!file) return file_failure("cannot open the plan", path);
  std::string text;
  std::array<char, 64_KiB> piece{};
  while (const size_t bytes = std::fread(piece.data(), 1, piece.size(), file.get())) {
    text.append(piece.data(), bytes);
    if (text.size() > kMostPlanBytes)
      return Failure{NORIA_E_ARG, printable(path) + " is larger than any plan"};
  }
  if (std::ferror(file.get()) != 0) return file_failure("cannot read the plan", path);
  return text;
}

}  // namespace

Outcome<Ok> Reducer::load_plan(const std::string& path) {
  if (is_sealed_)
    return Failure{NORIA_E_STATE, "noria_reducer_load_plan() comes before noria_reducer_seal()"};
  NORIA_TRY_ASSIGN(const std::string text, read_file(path));
  NORIA_TRY_ASSIGN(given_plan_, parse_plan(text, path));
  return Ok{};
}

Outcome<Ok> Reducer::save_plan(const std::string& path) const {
  if (!is_sealed_)
    return Failure{NORIA_E_STATE, "noria_reducer_save_plan() comes after noria_reducer_seal()"};
  const bool is_packed = given_plan_ ? given_plan_->is_packed : config_.plan == PlanKind::planned;
  const std::string text = text_of(saved_of(plan_, tensors_, is_packed));
  File file(std::fopen(path.c_str(), "we"));
  if (!file) return file_failure("cannot write the plan", path);
  const bool is_written = std::fwrite(text.data(), 1, text.size(), file.get()) == text.size();
  if (std::fclose(file.release()) != 0 || !is_written)
    return file_failure("cannot write the plan", path);
  return Ok{};
}

bool Reducer::observes() const {
  return !given_plan_ && (config_.order == Order::arrival || config_.plan == PlanKind::planned);
}

// Of a bucket over the link, as a planned reducer asks for it.
Outcome<double> Reducer::probe_us(uint64_t bytes) {
  if (!is_on_device()) return ring_probe_us(host_, arena_, collective_.timeout_ns, bytes);
  NORIA_TRY_ASSIGN(const DeviceMemory memory, DeviceMemory::allocate(*host_.device.device, bytes));
  auto took = median_us([&]() -> Outcome<double> {
    NORIA_TRY(device_->start_probe(memory.pointer(), bytes));
    NORIA_TRY(wait_for_results());
    return device_->probe_us();
  });
  if (!took) lose_device(took.failure());
  return took;
}

// With room for what is measured, even where buckets, or slots, take less.
Outcome<Ok> Reducer::make_arena(uint64_t buckets, Arena* arena) const {
  uint64_t bytes = layout_of(buckets).bytes;
  if (config_.plan == PlanKind::planned && !given_plan_ && !is_on_device())
    bytes = std::max(bytes, std::min(kMostProbedBytes, plan_.arena_bytes));
  NORIA_TRY_ASSIGN(*arena, Arena::create(host_.engine->domain(), bytes));
  return Ok{};
}

// ---- after the observed step --------------------------------------------------------------------

namespace {

// Rank 0 says in which order its gradients came, if any did; every rank, whether its views tie
// tensors down.
struct Told {
  std::optional<ArrivalTimes> times;
  bool are_views_out = false;
};

Outcome<Told> read_told(const std::vector<std::string>& all, uint32_t tensors) {
  Told told;
  for (const std::string& bytes : all) {
    if (bytes.empty())
      return Failure{NORIA_E_MISMATCH, "a rank said nothing of its order of arrival"};
    told.are_views_out |= bytes[0] != 0;
  }
  if (all[0].size() > 1 || tensors == 0) {
    const auto bytes = std::string_view(all[0]).substr(1);
    NORIA_TRY_ASSIGN(told.times, arrival_from_bytes(bytes, tensors));
  }
  return told;
}

// Views that were handed out stay valid until destroy: where any rank has them, tensors stay where
// they are, and what moves is the launch order, and in a planned plan the edges. So do shards.
// Where every rank copies, tensors are laid out anew, in the order of arrival. All ranks do the
// same, since they share one plan.
Plan plan_after(const std::vector<PlanTensor>& tensors, const ReducerConfig& config,
                const LinkCurve& link, const ArrivalTimes& times, bool are_views_out) {
  const std::vector<uint32_t> fill_order =
      are_views_out || config.is_sharded ? reverse_registration(tensors.size()) : times.order;
  Plan next =
      config.plan == PlanKind::planned
          ? plan_by_times(tensors, fill_order, config.caps, times.ready_us, link, config.wire_dtype)
          : plan_buckets(config.plan, tensors, fill_order, config.caps);
  if (config.plan != PlanKind::planned) launch_in_order(next, times.places());
  return next;
}

}  // namespace

// At the end of a step that succeeded, hence on all ranks or on none. One to which rank 0 gave
// nothing, as it joined or had accumulated all before, teaches nothing: a later one is observed.
Outcome<Ok> Reducer::adopt_arrival() {
  const Gather ask_all = gather_among(host_, host_.start_timeout);
  std::string mine(1, config_.arena ? '\1' : '\0');
  if (host_.rank == 0 && arrival_->has_any()) mine += to_bytes(arrival_->times(mode_.begun_ns));
  NORIA_TRY_ASSIGN(const auto told_by_all, ask_all("order of arrival", mine));
  NORIA_TRY_ASSIGN(const Told told, read_told(told_by_all, tensors_.size()));

  if (!told.times) return Ok{};
  Plan next = plan_after(plan_tensors(tensors_), config_, link_, *told.times, told.are_views_out);
  const std::string fingerprint = std::to_string(fingerprint_of(next));
  NORIA_TRY_ASSIGN(const auto fingerprints, ask_all("plan of arrival", fingerprint));
  if (std::any_of(fingerprints.begin(), fingerprints.end(),
                  [&](const std::string& other) { return other != fingerprint; }))
    return Failure{NORIA_E_MISMATCH,
                   "the ranks made different plans of rank 0's order of arrival: " +
                       values_by_rank(fingerprints) + "; run one build of noria on all of them"};
  next.arena_bytes = plan_.arena_bytes;  // what lies behind the buckets stays there
  if (is_on_device())
    NORIA_TRY(agree_on_success(device_->install(next), "plan of arrival, memory", ask_all));
  else
    NORIA_TRY(exchange_slots(next, ask_all));
  plan_ = std::move(next);
  arrival_.reset();
  ++plan_version_;
  return install_plan();
}

// Everything that follows from plan_: what is sent, what counts it, and where the left neighbour
// keeps it.
Outcome<Ok> Reducer::install_plan() {
  build_collective();
  const std::vector<Segment> segments = step_segments();
  readiness_ = std::make_unique<Readiness>(plan_, plan_tensors(tensors_), segments);
  if (slots_ != nullptr) slots_->cut(plan_, *readiness_);
  news_.first_segment = 0;
  while (segments[news_.first_segment].part < plan_.buckets.size()) ++news_.first_segment;
  install_hooks();
  collective_.pending =
      hooks_ != nullptr && hooks_->has(NORIA_HOOK_BEFORE) ? hooks_->gates() : readiness_->pending();
  if (is_on_device()) collective_.pending += news_.first_segment;
  if (Ring* ring = host_.engine->ring(); ring != nullptr)
    NORIA_TRY(ring->exchange_parts(collective_, now_ns() + host_.start_timeout));
  expect_fires();
  return Ok{};
}

// ---- how far this rank's order is from the plan's -----------------------------------------------

Nanoseconds Reducer::order_wait_ns(Nanoseconds last_ready_ns) {
  std::vector<ReadyBucket> buckets;
  buckets.reserve(infos_.size());
  for (const noria_bucket_info& info : infos_)
    buckets.push_back({.bytes = info.bytes, .ready_ns = info.ready_ns});
  const Nanoseconds wait = held_back_ns(buckets);
  const Nanoseconds backward = last_ready_ns - mode_.begun_ns;
  constexpr Nanoseconds kWorthSaying = 1_ms;
  // An observed step's order becomes the plan's.
  if (arrival_ != nullptr || is_order_told_ || wait < kWorthSaying || wait < backward / 10)
    return wait;
  is_order_told_ = true;
  const char* advice =
      "register tensors in the order of the forward pass on every rank, or set order to "
      "NORIA_ORDER_ARRIVAL";
  if (observes())
    advice =
        "the order is rank 0's of the step that was observed: run the same model on every rank";
  if (given_plan_)
    advice = "the order is that of the plan that was loaded: save a new one, of this model";
  log(LogLevel::warn,
      "rank %d: gradients come in another order than buckets are sent: in step %llu a byte waited "
      "%.1f ms on average, of %.1f ms, for one that is sent before it; %s",
      host_.rank, static_cast<unsigned long long>(step_ - 1), static_cast<double>(wait) * 1e-6,
      static_cast<double>(backward) * 1e-6, advice);
  return wait;
}

}  // namespace noria::bucketing
