// What a communicator does on its ranks' GPUs, and how these come together.
#include <utility>

#include "bucketing/comm.hpp"
#include "bucketing/lost_rank.hpp"

namespace noria::bucketing {
namespace {

// For what is under way on the GPU to end; whoever has waited for it loses nothing.
constexpr Nanoseconds kFinish = 1_s;

Outcome<Ok> said(const Outcome<std::string>& made) {
  if (!made) return made.failure();
  return Ok{};
}

}  // namespace

Outcome<Ok> Comm::open_gpu(const noria_comm_config& config) {
  if (config.device_kind == NORIA_STREAM_HOST && config.nccl_comm == nullptr) return Ok{};
  if (config.device_kind != NORIA_STREAM_CUDA)
    return Failure{NORIA_E_ARG, "noria_comm_config.device_kind is " +
                                    std::to_string(config.device_kind) +
                                    (config.device_kind == NORIA_STREAM_HOST
                                         ? ", and nccl_comm is given: that wants NORIA_STREAM_CUDA"
                                         : ": it takes 0 or 1")};
  NORIA_TRY_ASSIGN(gpu_, CommDevice::open(params_, config.device, config.nccl_comm));
  return Ok{};
}

Outcome<Ok> Comm::join_gpus(Nanoseconds deadline) {
  if (gpu_ == nullptr) return Ok{};
  const auto introduction = gpu_->introduce(rank_ == 0);
  NORIA_TRY(agree("make NCCL's id", said(introduction), deadline));
  NORIA_TRY_ASSIGN(const std::vector<std::string> introductions,
                   gather("tell of NCCL", *introduction));
  const CommDevice::Meeting meeting{.rank = rank_,
                                    .size = size_,
                                    .control = control_.get(),
                                    .deadline = deadline,
                                    .timeout = collective_timeout_};
  const auto joined = [&]() -> Outcome<Ok> {
    NORIA_TRY(gpu_->join(meeting, introductions));
    return gpu_->start(*engine_, meeting);
  }();
  // The others wait for this rank in NCCL, and go on when they hear of it.
  if (!joined && control_ != nullptr) return control_->settle(on_this_rank(joined.failure()));
  NORIA_TRY(agree("join NCCL", joined, deadline + kSettling));
  if (gpu_->nccl().owner() == NcclCollective::Owner::caller) return Ok{};  // it has been used
  auto tried = gpu_->try_out(*engine_, deadline);
  if (!tried) tried = fail_by_gpu(tried.failure());
  return agree("try NCCL", tried, deadline + kSettling);
}

bool Comm::end_work_on_gpu() {
  if (gpu_ == nullptr || engine_ == nullptr) return true;
  const bool is_done = gpu_->finish(engine_->failed() ? now_ns() : now_ns() + kFinish);
  if (!is_done && !engine_->failed())
    engine_->fail(on_this_rank({NORIA_E_ABORTED,
                                "the communicator was destroyed while its GPU "
                                "was at work for it"}));
  return is_done;
}

Failure Comm::fail_by_gpu(const Failure& failure) {
  if (control_ != nullptr) await_who_was_lost(*engine_, failure);
  if (!engine_->failed())
    engine_->fail(on_this_rank({failure.code, gpu_->device().name() + ": " + failure.text}));
  return engine_->failed() ? engine_->failure() : failure;
}

Failure Comm::on_this_rank(const Failure& failure) const {
  return {failure.code, on_rank(rank_, failure.text)};
}

// ---- collectives --------------------------------------------------------------------------------

// The other ranks are launching what this one will not: they must hear of it.
Failure Comm::refuse_by_gpu(const Failure& failure) {
  const bool is_lost = failure.code == NORIA_E_DEVICE || failure.code == NORIA_E_NOMEM;
  return is_lost ? fail_by_gpu(failure) : failure;
}

Outcome<std::optional<cuda::Stream>> Comm::read_stream(const noria_stream* stream) {
  auto read = bucketing::read_stream(stream, gpu_ != nullptr ? &gpu_->streams() : nullptr);
  if (!read && gpu_ != nullptr) return refuse_by_gpu(read.failure());
  return read;
}

Outcome<noria_work*> Comm::launch_on(cuda::Stream stream, const std::string& function, Kind kind,
                                     int32_t root, const Part* part, bool with_work) {
  NORIA_TRY(status());
  NORIA_TRY(check_no_step_open());
  if (const Outcome<Ok> fit = gpu_->check(function, part); !fit)
    return refuse_by_gpu(fit.failure());
  sweep_works();
  noria_work* work = nullptr;
  CudaEvent* done = nullptr;
  if (with_work) {
    Outcome<CudaEvent> event = gpu_->events().take();
    if (!event) return refuse_by_gpu(event.failure());
    work = &works_.emplace_back();
    work->comm = shared_from_this();
    work->engine = engine_.get();
    done = &work->device_work.emplace(std::move(event).value()).event();
  }
  const auto enqueued = gpu_->enqueue(kind, root, part, stream, done);
  if (enqueued) return work;
  if (with_work) works_.pop_back();
  return fail_by_gpu(enqueued.failure());
}

}  // namespace noria::bucketing
