#include "bucketing/reducer.hpp"

#include <algorithm>
#include <string>

#include "base/value_text.hpp"
#include "bucketing/device_buckets.hpp"
#include "bucketing/kernels.hpp"
#include "bucketing/reducer_words.hpp"

namespace noria::bucketing {

Reducer::Reducer(const ReducerHost& host, const ReducerConfig& config)
    : host_(host),
      config_(config),
      keeps_(config.unused == NORIA_UNUSED_KEEP),
      is_learning_(config.static_graph) {
  if (!config.is_on_device) return;
  const OpenStep* const step = this;
  device_ = std::make_unique<DeviceBuckets>(
      host.device, config,
      DeviceBuckets::Place{static_cast<uint32_t>(host.rank), static_cast<uint32_t>(host.size)},
      tensors_, DeviceBuckets::Turn{.steps = host.open_steps, .step = step},
      config.step_timeout != 0 ? config.step_timeout : host.collective_timeout);
}

std::byte* Reducer::gradients() const { return is_on_device() ? device_->arena() : arena_.base(); }

Reducer::~Reducer() {
  if (phase_ != Phase::open) return;
  gate_.close();
  if (mode_.accumulates) return;
  if (host_.size > 1) {
    host_.engine->fail({NORIA_E_ABORTED, "rank " + std::to_string(host_.rank) +
                                             " destroyed its reducer in the midst of step " +
                                             std::to_string(step_)});
    // The ring works in the arena until then; ends at once, as the engine failed.
    host_.engine->wait(collective_, kNever);
  }
  host_.open_steps->end(this);
}

Outcome<uint32_t> Reducer::add(std::string_view name, noria_dtype dtype, uint64_t numel,
                               uint32_t expected_fires) {
  const auto refuse = [&](noria_status code, const std::string& why) {
    return Failure{code, "tensor '" + printable(std::string(name)) + "'" + why};
  };
  if (phase_ != Phase::registering) {
    const auto known = tensors_.find(name);
    return refuse(NORIA_E_STATE, " comes after noria_reducer_seal(): " +
                                     (known ? "it was sealed as " + tensors_.describe(*known) +
                                                  ", and a model that changes needs a new reducer"
                                            : std::string("register all before it")));
  }
  if (expected_fires != 0 && config_.static_graph)
    return refuse(NORIA_E_ARG, ": expected_fires is " + std::to_string(expected_fires) +
                                   ": with static_graph it is learned; leave it 0");
  if (expected_fires >= static_cast<uint32_t>(Readiness::kUncertain))
    return refuse(NORIA_E_ARG,
                  ": expected_fires is " + std::to_string(expected_fires) + ": no graph has that");
  NORIA_TRY_ASSIGN(const uint32_t id, tensors_.add(name, dtype, numel));
  records_.expected_fires.push_back(std::max(1, static_cast<int32_t>(expected_fires)));
  return id;
}

Outcome<Ok> Reducer::set_hook(noria_hook_moment moment, const BucketHook& hook) {
  if (phase_ != Phase::registering)
    return Failure{NORIA_E_STATE, "noria_reducer_set_hook() comes before noria_reducer_seal()"};
  if (is_on_device())
    return Failure{NORIA_E_UNSUPPORTED,
                   "noria_reducer_set_hook: buckets on a device are not shown to the host's "
                   "functions: change gradients on their streams, before they are given"};
  if (hooks_ == nullptr) hooks_ = std::make_unique<BucketHooks>();
  hooks_->set(moment, hook);
  if (hooks_->moments() == 0) hooks_.reset();
  return Ok{};
}

Outcome<std::span<std::byte>> Reducer::view(uint32_t id) const {
  if (!is_sealed_)  // not phase_, which steps change while other threads look here
    return Failure{NORIA_E_STATE, "views exist after noria_reducer_seal()"};
  if (!config_.arena)
    return Failure{NORIA_E_STATE,
                   "this reducer copies; set arena to 1 in its configuration for views"};
  if (id >= tensors_.size()) return unknown_id(id, tensors_);
  return std::span<std::byte>(gradients() + records_.views[id],
                              tensors_[id].numel * dtype_bytes(tensors_[id].dtype));
}

Outcome<std::span<const noria_bucket_info>> Reducer::last_buckets() const {
  if (phase_ == Phase::registering)
    return Failure{NORIA_E_STATE, "buckets exist after noria_reducer_seal()"};
  return std::span<const noria_bucket_info>(infos_);
}

Outcome<noria_step_info> Reducer::last_step() const {
  if (!last_step_) return Failure{NORIA_E_STATE, "no step of this reducer has succeeded yet"};
  return *last_step_;
}

}  // namespace noria::bucketing
