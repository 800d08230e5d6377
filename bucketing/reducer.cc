#include "bucketing/reducer.hpp"

#include <string>

#include "base/value_text.hpp"
#include "bucketing/kernels.hpp"

namespace noria::bucketing {

Reducer::Reducer(const ReducerHost& host, const ReducerConfig& config)
    : host_(host), config_(config) {}

Reducer::~Reducer() {
  if (phase_ != Phase::open) return;
  gate_.close();
  if (host_.size > 1) {
    host_.engine->fail({NORIA_E_ABORTED, "rank " + std::to_string(host_.rank) +
                                             " destroyed its reducer in the midst of step " +
                                             std::to_string(step_)});
    // The ring works in the arena until then; ends at once, as the engine failed.
    host_.engine->wait(collective_, kNever);
  }
  // release: pairs with acquire where the communicator lets the next collective in.
  host_.is_step_open->store(false, std::memory_order_release);
}

Outcome<uint32_t> Reducer::add(std::string_view name, noria_dtype dtype, uint64_t numel) {
  if (phase_ != Phase::registering)
    return Failure{NORIA_E_STATE, "tensor '" + printable(std::string(name)) +
                                      "' comes after noria_reducer_seal(): register all before it"};
  return tensors_.add(name, dtype, numel);
}

Outcome<std::span<std::byte>> Reducer::view(uint32_t id) const {
  if (!is_sealed_)  // not phase_, which steps change while other threads look here
    return Failure{NORIA_E_STATE, "views exist after noria_reducer_seal()"};
  if (!config_.arena)
    return Failure{NORIA_E_STATE,
                   "this reducer copies; set arena to 1 in its configuration for views"};
  if (id >= tensors_.size()) return unknown_id(id);
  return std::span<std::byte>(arena_.base() + views_[id],
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

Failure Reducer::unknown_id(uint32_t id) const {
  return Failure{NORIA_E_ARG, "no tensor has id " + std::to_string(id) + ": " +
                                  std::to_string(tensors_.size()) + " were registered"};
}

}  // namespace noria::bucketing
