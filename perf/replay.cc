#include "perf/replay.hpp"

#include <sys/prctl.h>
#include <time.h>

#include <algorithm>
#include <cerrno>

#include "base/clock.hpp"
#include "perf/cuda_lane.hpp"
#include "perf/elements.hpp"
#include "perf/machine.hpp"
#include "perf/verify.hpp"

namespace noria::perf {
namespace {

double ms_of(int64_t ns) { return static_cast<double>(ns) * 1e-6; }

void sleep_until(Nanoseconds when) {
  const timespec ts{.tv_sec = when / 1'000'000'000, .tv_nsec = when % 1'000'000'000};
  while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, nullptr) == EINTR) {
  }
}

// Computes until then. A backward pass may be long: the death of another rank ends it. For what is
// past nobody sleeps: a timer that is due costs 18 us, and a pass has a hundred tensors.
void compute_until(Nanoseconds when, const Communicator& comm) {
  if (now_ns() >= when) return;
  constexpr Nanoseconds kSlice = 100_ms;
  for (Nanoseconds next = now_ns() + kSlice; next < when; next += kSlice) {
    sleep_until(next);
    comm.check("the backward pass");
  }
  sleep_until(when);
}

// Averages, as training wants them; sums where a tensor is of integers.
noria_op op_of(const Trace& trace) {
  const bool integers = std::any_of(trace.tensors.begin(), trace.tensors.end(),
                                    [](const TraceTensor& t) { return is_integer(t.dtype); });
  return integers ? NORIA_SUM : NORIA_AVG;
}

bool has_reducer(Mode mode) { return mode == Mode::bucketed || mode == Mode::when_full; }

// The same caps and tensors under DDP's plan, which no file changes.
ReplayPlan under_ddp(ReplayPlan plan) {
  plan.kind = NORIA_PLAN_DDP;
  plan.order = NORIA_ORDER_REVERSE;
  plan.load_plan.clear();
  plan.save_plan.clear();
  return plan;
}

}  // namespace

// Where each gradient lies, what it is filled with, and whether the result is right.
class Replay::Gradients {
 public:
  Gradients(const Trace& trace, const Communicator& comm, CudaLane* lane)
      : trace_(trace),
        rank_(comm.rank()),
        ranks_(comm.size()),
        op_(op_of(trace)),
        lane_(lane),
        at_(trace.tensors.size()) {
    uint64_t first = 0, largest = 0;
    for (size_t i = 0; i < at_.size(); ++i) {
      first_.push_back(first);
      first += trace.tensors[i].numel;
      largest = std::max(largest, bytes(i));
    }
    if (lane == nullptr) return;
    stream_ = lane->stream();
    here_ = std::make_unique<Buffer>(largest);
  }

  bool is_on_device() const { return lane_ != nullptr; }
  // Whose work the gradients are of, and collectives come behind; NULL: the host's.
  const noria_stream* stream() const { return is_on_device() ? &stream_ : nullptr; }
  // Until what was asked for with the stream is there.
  void wait() const {
    if (is_on_device()) lane_->wait();
  }

  noria_op op() const { return op_; }
  void* at(uint32_t index) const { return at_[index]; }
  void place(uint32_t index, void* memory) { at_[index] = memory; }

  // All in one buffer, each dtype without gaps.
  struct Flat {
    noria_dtype dtype;
    std::byte* begin;
    uint64_t count;
  };
  std::vector<Flat> place_flat() {
    std::vector<Flat> flats;
    std::byte* next = allocate(trace_.bytes() + kDtypes.size() * kAlign);
    for (const DtypeRow& row : kDtypes) {
      Flat flat{row.dtype, next, 0};
      for (size_t i = 0; i < at_.size(); ++i) {
        if (trace_.tensors[i].dtype != row.dtype) continue;
        at_[i] = next;
        next += trace_.tensors[i].numel * row.bytes;
        flat.count += trace_.tensors[i].numel;
      }
      if (flat.count > 0) flats.push_back(flat);
      next += (kAlign - static_cast<uint64_t>(next - flat.begin) % kAlign) % kAlign;
    }
    return flats;
  }

  void fill(uint32_t step) {
    for (size_t i = 0; i < at_.size(); ++i) {
      void* const to = is_on_device() ? here_->get() : at_[i];
      perf::fill(to, first_[i], trace_.tensors[i].numel, rank_, spec(i, step));
      if (is_on_device()) lane_->to_device(reinterpret_cast<uint64_t>(at_[i]), to, bytes(i));
    }
  }
  uint64_t wrong(uint32_t step) const {
    uint64_t wrong = 0;
    for (size_t i = 0; i < at_.size(); ++i) {
      void* const from = is_on_device() ? here_->get() : at_[i];
      if (is_on_device()) lane_->to_host(from, reinterpret_cast<uint64_t>(at_[i]), bytes(i));
      wrong += count_wrong(from, first_[i], trace_.tensors[i].numel, spec(i, step));
    }
    return wrong;
  }

 private:
  static constexpr uint64_t kAlign = 4096;

  uint64_t bytes(size_t index) const {
    return trace_.tensors[index].numel * dtype_row(trace_.tensors[index].dtype).bytes;
  }
  std::byte* allocate(uint64_t bytes) {
    if (is_on_device()) {
      flat_there_.emplace(lane_->memory(bytes));
      return reinterpret_cast<std::byte*>(flat_there_->pointer());
    }
    flat_ = std::make_unique<Buffer>(bytes);
    return static_cast<std::byte*>(flat_->get());
  }
  DataSpec spec(size_t index, uint32_t step) const {
    return {.dtype = trace_.tensors[index].dtype, .op = op_, .ranks = ranks_, .round = step};
  }

  const Trace& trace_;
  int rank_, ranks_;
  noria_op op_;
  CudaLane* lane_;
  noria_stream stream_{};
  std::vector<void*> at_;
  std::vector<uint64_t> first_;  // element number within the whole trace: data differs by tensor
  std::unique_ptr<Buffer> flat_;
  std::optional<bucketing::DeviceMemory> flat_there_;
  std::unique_ptr<Buffer> here_;  // what goes to a GPU and comes from it, tensor by tensor
};

// What differs between the modes of a step.
class Replay::Strategy {
 public:
  virtual ~Strategy() = default;
  virtual Gradients& gradients() = 0;
  virtual void begin() {}
  virtual void ready(uint32_t index) = 0;
  // Returns when all results are there; the step's communication time in ms goes to the result.
  virtual double end(StepTimes& times) = 0;
  // After the steps: what could not be measured within them.
  virtual void conclude(ModeResult&) {}
};

class Replay::Sequential : public Strategy {
 public:
  Sequential(const ReplayPlan& plan, Communicator& comm, CudaLane* lane)
      : comm_(comm), plan_(plan), gradients_(plan.trace, comm, lane) {
    flats_ = gradients_.place_flat();
  }
  Gradients& gradients() override { return gradients_; }
  void ready(uint32_t) override {}
  double end(StepTimes& times) override {
    const Nanoseconds begin = now_ns();
    reduce();
    const Nanoseconds end = now_ns();
    times.transfers = {{.bytes = plan_.trace.bytes(),
                        .tensors = static_cast<uint32_t>(plan_.trace.tensors.size()),
                        .ready_ns = begin,
                        .start_ns = begin,
                        .end_ns = end,
                        .wire_ns = end - begin}};
    return ms_of(end - begin);
  }
  void reduce() {
    for (const Gradients::Flat& flat : flats_)
      require(noria_all_reduce(comm_.get(), flat.begin, flat.begin, flat.count, flat.dtype,
                               gradients_.op(), gradients_.stream(), nullptr),
              "all_reduce");
    gradients_.wait();
  }

 private:
  Communicator& comm_;
  const ReplayPlan& plan_;
  Gradients gradients_;
  std::vector<Gradients::Flat> flats_;
};

class Replay::PerTensor : public Strategy {
 public:
  PerTensor(const ReplayPlan& plan, Communicator& comm, CudaLane* lane)
      : comm_(comm), plan_(plan), gradients_(plan.trace, comm, lane) {
    gradients_.place_flat();
  }
  Gradients& gradients() override { return gradients_; }
  void begin() override { works_.clear(); }
  void ready(uint32_t index) override {
    noria_work* work = nullptr;
    reduce(index, &work);
    works_.emplace_back(work);
  }
  double end(StepTimes&) override {
    for (const Work& work : works_) require(noria_work_wait(work.get(), 0), "all_reduce");
    return 0;
  }
  // Completion times of single calls cannot be seen from outside, so the calls are made once more,
  // one after the other, with no backward pass between them.
  void conclude(ModeResult& result) override {
    comm_.barrier();
    const Nanoseconds begin = now_ns();
    for (const uint32_t index : plan_.times.order) reduce(index, nullptr);
    gradients_.wait();
    const double alone = ms_of(now_ns() - begin);
    result.communication_ms.assign(result.step_ms.size(), alone);
  }

 private:
  void reduce(uint32_t index, noria_work** work) {
    const TraceTensor& tensor = plan_.trace.tensors[index];
    void* memory = gradients_.at(index);
    require(noria_all_reduce(comm_.get(), memory, memory, tensor.numel, tensor.dtype,
                             gradients_.op(), gradients_.stream(), work),
            "all_reduce");
  }

  Communicator& comm_;
  const ReplayPlan& plan_;
  Gradients gradients_;
  std::vector<Work> works_;
};

class Replay::Bucketed : public Strategy {
 public:
  Bucketed(const ReplayPlan& plan, Communicator& comm, CudaLane* lane)
      : plan_(plan), is_first_rank_(comm.rank() == 0), gradients_(plan.trace, comm, lane) {
    noria_reducer_config config = NORIA_REDUCER_CONFIG_INIT;
    config.arena = plan.copies ? 0 : 1;
    config.max_in_flight = plan.max_in_flight;
    config.bucket_bytes = plan.bucket_bytes;
    config.first_bucket_bytes = plan.first_bucket_bytes;
    config.last_bucket_bytes = plan.last_bucket_bytes;
    config.plan = plan.kind;
    config.order = plan.order;
    config.op = gradients_.op();
    if (gradients_.is_on_device()) config.device_kind = NORIA_STREAM_CUDA;
    noria_reducer* reducer = nullptr;
    require(noria_reducer_create(comm.get(), &config, &reducer), "noria_reducer_create");
    reducer_.reset(reducer);
    for (const TraceTensor& tensor : plan.trace.tensors) {
      noria_tensor_desc desc = NORIA_TENSOR_DESC_INIT;
      desc.dtype = tensor.dtype;
      desc.name = tensor.name.c_str();
      desc.numel = tensor.numel;
      uint32_t id = 0;
      require(noria_reducer_add(reducer, &desc, &id), "noria_reducer_add");
      ids_.push_back(id);
    }
    if (!plan.load_plan.empty())
      require(noria_reducer_load_plan(reducer, plan.load_plan.c_str()), "noria_reducer_load_plan");
    const Nanoseconds begin = now_ns();
    require(noria_reducer_seal(reducer), "noria_reducer_seal");
    seal_ms_ = ms_of(now_ns() - begin);
    place();
  }
  Gradients& gradients() override { return gradients_; }
  void begin() override { require(noria_step_begin(reducer_.get(), 0), "noria_step_begin"); }
  void ready(uint32_t index) override {
    require(
        noria_grad_ready(reducer_.get(), ids_[index], gradients_.at(index), gradients_.stream()),
        "noria_grad_ready");
  }
  double end(StepTimes& times) override {
    noria_step_report report = NORIA_STEP_REPORT_INIT;
    require(noria_step_end(reducer_.get(), nullptr, &report), "noria_step_end");
    times.reported_exposed_ns = report.exposed_ns;
    return ms_of(report.communication_ns);
  }
  void conclude(ModeResult& result) override {
    result.seal_ms = seal_ms_;
    if (!plan_.save_plan.empty() && is_first_rank_)
      require(noria_reducer_save_plan(reducer_.get(), plan_.save_plan.c_str()),
              "noria_reducer_save_plan");
    uint32_t count = 0;
    require(noria_observe_buckets(reducer_.get(), nullptr, 0, &count), "noria_observe_buckets");
    std::vector<noria_bucket_info> buckets(count);
    if (count > 0) buckets[0].struct_size = sizeof buckets[0];
    require(noria_observe_buckets(reducer_.get(), buckets.data(), count, &count),
            "noria_observe_buckets");
    for (const noria_bucket_info& bucket : buckets)
      result.last.transfers.push_back({.bytes = bucket.bytes,
                                       .tensors = bucket.tensors,
                                       .ready_ns = bucket.ready_ns,
                                       .start_ns = bucket.start_ns,
                                       .end_ns = bucket.end_ns,
                                       .first_ns = bucket.first_ns,
                                       .queued_ns = bucket.queued_ns,
                                       .wire_ns = bucket.wire_ns});
  }

 private:
  struct Destroy {
    void operator()(noria_reducer* reducer) const { noria_reducer_destroy(reducer); }
  };

  void place() {
    if (plan_.copies) {
      gradients_.place_flat();
      return;
    }
    for (uint32_t i = 0; i < ids_.size(); ++i) {
      void* view = nullptr;
      uint64_t bytes = 0;
      require(noria_reducer_view(reducer_.get(), ids_[i], &view, &bytes), "noria_reducer_view");
      gradients_.place(i, view);
    }
  }

  const ReplayPlan& plan_;
  const bool is_first_rank_;
  Gradients gradients_;
  double seal_ms_ = 0;
  std::unique_ptr<noria_reducer, Destroy> reducer_;
  std::vector<uint32_t> ids_;
};

// The reducer sends what it is given while a bucket fills; here it is given a bucket's gradients
// only when the last of them is ready.
class Replay::WhenFull : public Bucketed {
 public:
  WhenFull(const ReplayPlan& plan, Communicator& comm, CudaLane* lane)
      : Bucketed(plan, comm, lane),
        buckets_(plan.ddp_buckets),
        bucket_of_(plan.trace.tensors.size()),
        missing_(buckets_.size()) {
    for (uint32_t b = 0; b < buckets_.size(); ++b)
      for (const uint32_t index : buckets_[b]) bucket_of_[index] = b;
  }
  void begin() override {
    Bucketed::begin();
    for (size_t b = 0; b < buckets_.size(); ++b) missing_[b] = buckets_[b].size();
  }
  void ready(uint32_t index) override {
    const uint32_t bucket = bucket_of_[index];
    if (--missing_[bucket] != 0) return;
    for (const uint32_t member : buckets_[bucket]) Bucketed::ready(member);
  }

 private:
  const std::vector<std::vector<uint32_t>>& buckets_;
  std::vector<uint32_t> bucket_of_;  // by index of tensor
  std::vector<size_t> missing_;      // of each bucket in this step
};

Replay::Replay(const ReplayPlan& plan, Communicator& comm, CudaLane* lane)
    : plan_(plan), comm_(comm), lane_(lane) {
  // Threads that exist keep theirs; the compute thread should not oversleep by the usual 50 us.
  ::prctl(PR_SET_TIMERSLACK, 1000UL);
}

ModeResult Replay::run(Mode mode, const std::function<void(int)>& progress) {
  std::unique_ptr<Strategy> strategy;
  switch (mode) {
    case Mode::sequential: strategy = std::make_unique<Sequential>(plan_, comm_, lane_); break;
    case Mode::per_tensor: strategy = std::make_unique<PerTensor>(plan_, comm_, lane_); break;
    case Mode::bucketed: strategy = std::make_unique<Bucketed>(plan_, comm_, lane_); break;
    case Mode::when_full:
      ddp_plan_ = under_ddp(plan_);
      strategy = std::make_unique<WhenFull>(ddp_plan_, comm_, lane_);
      break;
  }
  ModeResult result{.mode = mode};
  for (int step = 0; step < plan_.warmups + plan_.steps; ++step) {
    progress(step);
    const auto round = static_cast<uint32_t>(step);
    strategy->gradients().fill(round);
    comm_.barrier();
    StepTimes times;
    const double cpu_before = process_cpu_seconds();
    times.begin_ns = now_ns();
    strategy->begin();
    for (const uint32_t index : plan_.times.order) {
      compute_until(times.begin_ns + static_cast<Nanoseconds>(plan_.times.ready_ms[index] * 1e6),
                    comm_);
      times.ready_ns.push_back(now_ns());
      strategy->ready(index);
    }
    const double communication_ms = strategy->end(times);
    times.end_ns = now_ns();
    const double cpu = process_cpu_seconds() - cpu_before;
    result.wrong += strategy->gradients().wrong(round);
    if (step < plan_.warmups) continue;
    result.step_ms.push_back(ms_of(times.end_ns - times.begin_ns));
    result.communication_ms.push_back(communication_ms);
    if (has_reducer(mode)) {
      result.reported_exposed_ms.push_back(ms_of(times.reported_exposed_ns));
      result.outside_exposed_ms.push_back(ms_of(times.end_ns - times.ready_ns.back()));
    }
    result.cpu_seconds += cpu;
    result.last = std::move(times);
  }
  strategy->conclude(result);
  return result;
}

std::vector<double> Replay::flat_ms(int calls) {
  Sequential sequential(plan_, comm_, lane_);
  sequential.gradients().fill(0);
  std::vector<double> times;
  for (int i = 0; i < calls; ++i) {
    comm_.barrier();
    const Nanoseconds begin = now_ns();
    sequential.reduce();
    times.push_back(ms_of(now_ns() - begin));
  }
  return comm_.largest(std::move(times));
}

}  // namespace noria::perf
