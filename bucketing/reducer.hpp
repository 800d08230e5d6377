// Reducer: gradients in, one by one and in any order; averaged gradients out.
//
// Tensors are registered, then seal() cuts them into buckets that lie in one registered arena. A
// step is one collective whose parts are the buckets in plan order, then one int64: the verdict.
// grad_ready() marks a tensor as in place, and a piece of a bucket is sent as soon as its tensors
// are there; step_end() waits for the rest. Results do not depend on the order of arrival: the ring
// adds each chunk in ring order.
//
// A rank that missed a tensor, gave one twice or left a step contributes a verdict instead of
// leaving the others to wait: the step runs to its end everywhere and fails on all ranks alike. The
// communicator stays good. A failure of the communicator is for good.
//
// Files: reducer.cc (life), reducer_seal.cc (agreement and memory), reducer_plan.cc (the plan),
// reducer_step.cc (a step).
//
// Threads: add(), load_plan() and seal() init only; step_begin(), step_end(), reset(), last_buckets(), save_plan()
// one at a time; grad_ready() any thread, several at once; view() any thread after seal().
#pragma once

#include <noria/bucketing.h>
#include <noria/observe.h>

#include <atomic>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/link_curve.hpp"
#include "bucketing/agreement.hpp"
#include "bucketing/arena.hpp"
#include "bucketing/arrival.hpp"
#include "bucketing/bucket_times.hpp"
#include "bucketing/collective.hpp"
#include "bucketing/control.hpp"
#include "bucketing/engine.hpp"
#include "bucketing/failure.hpp"
#include "bucketing/plan.hpp"
#include "bucketing/plan_text.hpp"
#include "bucketing/readiness.hpp"
#include "bucketing/reducer_config.hpp"
#include "bucketing/step_gate.hpp"
#include "bucketing/tensor_table.hpp"
#include "bucketing/verdict.hpp"

namespace noria::bucketing {

// What a communicator lends to its reducers, which must not outlive it.
struct ReducerHost {
  int32_t rank = 0;
  int32_t size = 1;
  Engine* engine = nullptr;
  ControlPlane* control = nullptr;            // null: one rank
  std::atomic<bool>* is_step_open = nullptr;  // keeps other collectives out while a step is open
  Nanoseconds start_timeout = 0;
  Nanoseconds collective_timeout = 0;
};

class Reducer {
 public:
  Reducer(const ReducerHost& host, const ReducerConfig& config);
  // With a step open the communicator fails with ABORTED: others cannot wait for this rank.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  Outcome<uint32_t> add(std::string_view name, noria_dtype dtype, uint64_t numel);
  // A plan that save_plan() wrote, for seal() to take as it is: nothing is observed any more.
  Outcome<Ok> load_plan(const std::string& path);
  Outcome<Ok> seal();
  // The plan in use.
  Outcome<Ok> save_plan(const std::string& path) const;
  Outcome<std::span<std::byte>> view(uint32_t id) const;

  Outcome<Ok> step_begin();
  NORIA_HOT Outcome<Ok> grad_ready(uint32_t id, const void* grad);
  Outcome<noria_step_info> step_end();
  Outcome<Ok> reset();

  uint32_t buckets() const { return static_cast<uint32_t>(plan_.buckets.size()); }
  uint64_t bytes() const { return tensors_.bytes(); }
  // How many plans were given up for a better one.
  uint64_t plan_version() const { return plan_version_; }
  // In launch order, with the times of the last step that succeeded; zeros before.
  Outcome<std::span<const noria_bucket_info>> last_buckets() const;
  Outcome<noria_step_info> last_step() const;

 private:
  enum class Phase { registering, idle, open, failed };

  // seal()
  std::vector<PlanTensor> plan_tensors() const;
  Outcome<Ok> refuse_integer_average() const;
  uint64_t wire_offset() const;
  uint64_t wire_bytes() const;
  uint32_t input_divisor() const;
  void travel_narrow(Part& part) const;
  void build_collective();
  void describe_buckets();
  Gather gather(Nanoseconds timeout) const;

  // its plan
  bool observes() const {
    return !given_plan_ && (config_.order == Order::arrival || config_.plan == PlanKind::planned);
  }
  bool is_packed() const {
    return given_plan_ ? given_plan_->is_packed : config_.plan == PlanKind::planned;
  }
  uint64_t given_plan_fingerprint() const;
  Outcome<Plan> first_plan() const;
  Outcome<Ok> measure_link(const Gather& ask_all);
  Outcome<double> measure_us(uint64_t bytes);
  Plan plan_after(const ArrivalTimes& times, bool are_views_out) const;
  Outcome<Ok> adopt_arrival();
  Outcome<Ok> install_plan();
  Nanoseconds order_wait_ns(Nanoseconds last_ready_ns);

  // a step
  NORIA_HOT void copy_in(uint32_t id, const std::byte* grad);
  void take_stretches(const Readiness::Home& home);
  void on_stretch_ready(uint32_t stretch, Nanoseconds given);
  Outcome<Ok> finish(bool was_reset);
  Outcome<Ok> judge(const Complaints& mine) const;
  void wait_and_copy_out();
  bool has_result(size_t bucket);
  void copy_out(const Bucket& bucket);
  noria_step_info describe_step(Nanoseconds ended_ns);
  uint64_t moved_bytes() const;

  NORIA_COLD Failure no_step_open() const;
  NORIA_COLD Failure unknown_id(uint32_t id) const;
  NORIA_COLD Failure wrong_pointer(uint32_t id) const;
  NORIA_COLD Failure given_twice(uint32_t id) const;

  const ReducerHost host_;
  const ReducerConfig config_;
  Phase phase_ = Phase::registering;
  uint64_t step_ = 0;  // the open one, or the next
  Nanoseconds begun_ns_ = 0;
  uint64_t moved_before_ = 0;  // moved_bytes() when it began

  TensorTable tensors_;
  std::optional<SavedPlan> given_plan_;
  Plan plan_;
  bool is_sealed_ = false;
  std::vector<uint64_t> views_;  // arena mode: of each tensor in the arena; never changes
  Arena arena_;
  std::unique_ptr<Readiness> readiness_;
  Collective collective_;
  int64_t* verdict_ = nullptr;       // in the arena
  uint32_t verdict_segment_ = 0;     // the last, and the last stretch
  std::vector<std::byte*> sources_;  // copy mode: where results go, by id
  BucketTimes times_;
  std::vector<noria_bucket_info> infos_;
  std::unique_ptr<Arrival> arrival_;  // while a step is still to be observed
  LinkCurve link_;                    // planned
  uint64_t plan_version_ = 0;
  bool is_order_told_ = false;
  std::optional<noria_step_info> last_step_;
  StepGate gate_;  // on top of all that grad_ready() uses
};

}  // namespace noria::bucketing
