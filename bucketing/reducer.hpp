// Reducer: gradients in, one by one and in any order; averaged gradients out.
//
// Tensors are registered, then seal() cuts them into buckets that lie in one registered arena. A
// step is one collective whose parts are the buckets in plan order, then the news: the verdict and,
// with the policy KEEP, which tensors any rank used. grad_ready() marks a tensor as in place, and a
// piece of a bucket is sent as soon as its tensors are there; step_end() waits for the rest.
// Results do not depend on the order of arrival: the ring adds each chunk in ring order.
//
// A step that only accumulates is a pass of its window (window.hpp) and sends nothing; in the first
// pass of a static graph fires are counted, and what they brought is sent in step_end().
//
// A rank that missed a tensor, gave one twice or left a step contributes a verdict: the step runs
// to its end everywhere and fails on all ranks alike. What is found in results, by a user's hook or
// in a shard, the control plane carries: in a long ring no bucket ends before what lies behind it
// is ready. A failure of the communicator is for good.
//
// Threads: add(), set_hook(), load_plan() and seal() init only; step_begin(), step_end(), reset(),
// last_buckets(), save_plan() one at a time; grad_ready(), grad_unused() any, several at once;
// result() likewise, a tensor at a time, until the next step_begin(); view() any after seal().
#pragma once

#include <noria/bucketing.h>
#include <noria/observe.h>

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.hpp"
#include "base/link_curve.hpp"
#include "bucketing/agreement.hpp"
#include "bucketing/arena.hpp"
#include "bucketing/arrival.hpp"
#include "bucketing/bucket_hooks.hpp"
#include "bucketing/bucket_slots.hpp"
#include "bucketing/bucket_times.hpp"
#include "bucketing/collective.hpp"
#include "bucketing/cuda_types.hpp"
#include "bucketing/failure.hpp"
#include "bucketing/gradient_records.hpp"
#include "bucketing/plan.hpp"
#include "bucketing/plan_text.hpp"
#include "bucketing/readiness.hpp"
#include "bucketing/reducer_config.hpp"
#include "bucketing/reducer_host.hpp"
#include "bucketing/step_gate.hpp"
#include "bucketing/step_mode.hpp"
#include "bucketing/step_news.hpp"
#include "bucketing/step_progress.hpp"
#include "bucketing/tensor_table.hpp"
#include "bucketing/verdict.hpp"
#include "bucketing/window.hpp"

namespace noria::bucketing {

class CallerStreams;
class DeviceBuckets;

class Reducer final : private OpenStep {
 public:
  using Consumer = std::optional<cuda::Stream>;

  Reducer(const ReducerHost& host, const ReducerConfig& config);
  // With a step open the communicator fails with ABORTED: others cannot wait for this rank.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  // `expected_fires` 0: once, or what a static graph teaches.
  Outcome<uint32_t> add(std::string_view name, noria_dtype dtype, uint64_t numel,
                        uint32_t expected_fires = 0);
  Outcome<Ok> set_hook(noria_hook_moment moment, const BucketHook& hook);
  // A plan that save_plan() wrote, for seal() to take as it is: nothing is observed any more.
  Outcome<Ok> load_plan(const std::string& path);
  Outcome<Ok> seal();
  // The plan in use.
  Outcome<Ok> save_plan(const std::string& path) const;
  Outcome<std::span<std::byte>> view(uint32_t id) const;

  Outcome<Ok> step_begin(bool accumulates = false);
  NORIA_HOT Outcome<Ok> grad_ready(uint32_t id, const void* grad);
  // The same on a device, once what `producer` was given so far is done.
  Outcome<Ok> grad_ready_from(uint32_t id, const void* grad, cuda::Stream producer) {
    return give_on_device(id, grad, producer);
  }
  Outcome<Ok> grad_unused(std::span<const uint32_t> ids);
  // Of the open step, or of the last; null if no rank used it (KEEP). `timeout` 0: the step's.
  // `consumer` is a stream of the device, which waits for results; none: the caller does.
  Outcome<const void*> result(uint32_t id, Nanoseconds timeout, Consumer consumer = {});
  // Once a step has ended, the same answer until the next begins.
  Outcome<noria_step_info> step_end(Consumer consumer = {});
  // A whole step of what this rank accumulated, if anything. `is_over`: no rank had more to give.
  Outcome<noria_step_info> step_join(bool* is_over, Consumer consumer = {});
  Outcome<Ok> reset();

  // Of this rank, as noria_reducer_shard() and its neighbours.
  Outcome<noria_shard_info> shard(uint32_t bucket) const;
  Outcome<std::vector<noria_shard_range>> shard_ranges() const;
  Outcome<uint64_t> offset_of(uint32_t id) const;
  uint64_t layout_bytes() const { return plan_.arena_bytes; }
  // `dtype` none: each bucket's own.
  Outcome<Ok> all_gather(std::byte* memory, uint64_t bytes, std::optional<noria_dtype> dtype);

  // Null where gradients lie on the host.
  CallerStreams* streams() const;
  bool is_on_device() const { return device_ != nullptr; }

  uint32_t buckets() const { return static_cast<uint32_t>(plan_.buckets.size()); }
  uint64_t bytes() const { return tensors_.bytes(); }
  uint64_t plan_version() const { return plan_version_; }  // plans given up for a better one
  // In launch order, of the last step that succeeded and in its plan; zeros before.
  Outcome<std::span<const noria_bucket_info>> last_buckets() const;
  Outcome<noria_step_info> last_step() const;

 private:
  enum class Phase { registering, idle, open, failed };

  // seal()
  void make_tables();
  void expect_fires();
  uint64_t news_count() const { return StepNews::count(keeps_ ? tensors_.size() : 0); }
  std::byte* shard_place(uint32_t bucket) const;
  // What of a bucket holds its reduction on this rank; and of a tensor that lies there.
  ArenaRange result_of(const Bucket& bucket) const;
  ArenaRange result_part(uint32_t bucket, uint32_t id) const;
  const void* first_in_shards(uint32_t id) const;
  Outcome<Ok> check_sharded() const;
  Outcome<Ok> gather_on_device(std::byte* memory, std::optional<noria_dtype> dtype);
  const transport::Region* gathered_region(std::byte* memory, uint64_t bytes);
  std::byte* gradients() const;
  uint64_t buckets_bytes() const;
  std::byte* place_of(uint32_t bucket) const;
  bool travels_narrow() const { return config_.wire_dtype != 0 && host_.size > 1; }
  ArenaLayout layout_of(uint64_t buckets) const;
  Outcome<Ok> make_arena(uint64_t buckets, Arena* arena) const;
  void travel_narrow(Part& part) const;
  void build_collective();
  void add_bucket(uint32_t index);
  std::vector<Segment> step_segments() const;
  void install_hooks();
  void describe_buckets();

  // its plan
  bool observes() const;
  Outcome<double> probe_us(uint64_t bytes);
  Outcome<Ok> adopt_arrival();
  Outcome<Ok> install_plan();
  Nanoseconds order_wait_ns(Nanoseconds last_ready_ns);

  // a step
  std::string owes() const override;
  void start_collective();
  NORIA_HOT void copy_in(uint32_t id, const std::byte* grad);
  void take_stretches(const Readiness::Home& home);
  void on_stretch_ready(uint32_t stretch, Nanoseconds given);
  void send_piece(uint32_t bucket);
  void contribute(uint32_t id, bool is_used);
  void restart_window();
  void end_pass(bool is_last);
  void learn();
  NORIA_COLD void give_unusually(uint32_t id, std::byte* grad, bool is_last);
  void look_for_nonfinite(uint32_t id, const std::byte* grad);
  Complaints complaints_of_step(bool was_reset) const;
  Outcome<noria_step_info> end_step(Consumer consumer);
  Outcome<Ok> finish(bool was_reset, Consumer consumer);
  void tell_news(const Complaints& complaints);
  bool shows_results() const;
  void complain_of_results(int32_t verdict, Complaints& mine) const;
  Outcome<Ok> judge(Complaints mine) const;
  bool looks_at_results() const;
  void finish_buckets(uint32_t end);
  void finish_bucket(uint32_t index);
  bool has_result(size_t bucket);
  void copy_out(uint32_t bucket);
  void put_back_unused();
  WireTimes wire_times(uint32_t bucket) const;
  noria_step_info describe_step(Nanoseconds ended_ns);
  NORIA_COLD void show_step(bool is_good);

  // on a device
  NORIA_HOT Outcome<Ok> give_on_device(uint32_t id, const void* grad, Consumer producer);
  void start_on_device();
  void contribute_on_device(uint32_t id, bool is_used);
  void launch_on_device(uint32_t bucket);
  Outcome<Ok> launch_rest(Consumer consumer);
  Outcome<Ok> finish_on_device(const Outcome<Ok>& launched, Consumer consumer, bool is_good);
  NORIA_COLD void lose_device(const Failure& failure);
  Outcome<bool> wait_for_device(const std::function<Outcome<bool>()>& is_over,
                                Nanoseconds deadline) const;
  Outcome<Ok> wait_for_results() const;
  Outcome<Ok> show_on_device(Consumer consumer) const;
  Outcome<const void*> device_result(uint32_t id, Consumer consumer);
  Outcome<const void*> early_device_result(uint32_t id, Nanoseconds timeout, Consumer consumer);

  // its slots
  std::unique_ptr<BucketSlots> slots_for(const Plan& plan) const;
  Outcome<Ok> exchange_slots(const Plan& next, const Gather& ask_all);
  std::byte* room_for_result(uint32_t id);
  NORIA_COLD void offer(uint32_t id, std::byte* memory, bool is_zero);
  void fill(const BucketSlots::Piece& piece);
  void finish_ended_buckets();

  // one tensor's result
  Outcome<const void*> early_result(uint32_t id, Nanoseconds timeout);
  bool is_given(uint32_t id) const;
  bool is_used_by_any(uint32_t id) const { return !keeps_ || news_.is_used(id); }
  NORIA_COLD Failure no_result_yet(uint32_t id, Nanoseconds waited) const;

  const ReducerHost host_;
  const ReducerConfig config_;
  Phase phase_ = Phase::registering;
  uint64_t step_ = 0;  // the synchronised one that is open, or the next
  StepMode mode_;
  const bool keeps_;                               // a tensor that no rank used stays as it is
  bool is_learning_ = false;                       // a static graph whose first pass is not over
  std::optional<Outcome<noria_step_info>> ended_;  // what step_end() answered, until the next step
  std::atomic<bool> has_results_{false};           // of the last step, which has ended
  Window window_;
  bool is_window_over_ = false;  // the next step begins a new one
  TensorTable tensors_;
  std::optional<SavedPlan> given_plan_;
  Plan plan_;
  bool is_sealed_ = false, is_order_told_ = false;
  uint64_t seal_number_ = 0;  // among the reducers sealed on the communicator
  Arena arena_;
  transport::Region gathered_;  // the memory that all_gather() was given last
  std::unique_ptr<Readiness> readiness_;
  Collective collective_;
  StepNews news_;
  std::unique_ptr<DeviceBuckets> device_;    // null: gradients lie on the host
  std::atomic<bool> is_device_lost_{false};  // for good; the engine hears of it, and fails later
  std::unique_ptr<BucketHooks> hooks_;       // null: none was set
  StepProgress progress_;
  GradientRecords records_;
  std::unique_ptr<BucketSlots> slots_;  // null: each bucket has its own place
  BucketTimes times_;
  std::vector<noria_bucket_info> infos_;  // of the plan of the last step that succeeded
  std::unique_ptr<Arrival> arrival_;      // while a step is still to be observed
  LinkCurve link_;                        // planned
  uint64_t plan_version_ = 0, described_version_ = 0;  // of plan_; of infos_
  std::optional<noria_step_info> last_step_;
  StepGate gate_;  // on top of all that grad_ready() uses
};

}  // namespace noria::bucketing
