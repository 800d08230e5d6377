#include "bucketing/comm_device.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "bucketing/control_wire.hpp"
#include "bucketing/device_idle.hpp"
#include "bucketing/kernels.hpp"

namespace noria::bucketing {
namespace {

// The element that a barrier reduces.
constexpr size_t kScratchBytes = sizeof(int32_t);

// All blocks of one size.
bool is_even(const std::vector<uint64_t>& edges) {
  for (size_t i = 0; i + 1 < edges.size(); ++i)
    if (edges[i + 1] - edges[i] != edges[1]) return false;
  return true;
}

}  // namespace

// ---- life ---------------------------------------------------------------------------------------

CommDevice::CommDevice(std::unique_ptr<CudaDevice> device, const NcclApi& nccl, void* nccl_comm,
                       DeviceMemory scratch)
    : device_(std::move(device)),
      nccl_api_(&nccl),
      callers_comm_(static_cast<nccl::Comm>(nccl_comm)),
      streams_(*device_),
      events_(*device_),
      scratch_(std::move(scratch)) {}

Outcome<std::unique_ptr<CommDevice>> CommDevice::open(const Params& params, int32_t ordinal,
                                                      void* nccl_comm) {
  NORIA_TRY_ASSIGN(std::unique_ptr<CudaDevice> device, CudaDevice::create(params.cuda, ordinal));
  NORIA_TRY_ASSIGN(const NcclApi* const nccl, NcclApi::open(params.nccl));
  NORIA_TRY_ASSIGN(DeviceMemory scratch, DeviceMemory::allocate(*device, kScratchBytes));
  return std::unique_ptr<CommDevice>(
      new CommDevice(std::move(device), *nccl, nccl_comm, std::move(scratch)));
}

// A barrier that was aborted may still be at the scratch.
CommDevice::~CommDevice() {
  if (nccl_ == nullptr) return;
  if (!is_still_at_work([this](Nanoseconds patience) { return is_idle_within(patience); })) return;
  log(LogLevel::warn, "%s still works for NCCL, seconds after its communicator was destroyed",
      device_->name().c_str());
  scratch_.keep_for_good();
}

Outcome<bool> CommDevice::is_idle_within(Nanoseconds patience) const {
  NORIA_TRY_ASSIGN(const CudaDevice::Current current, device_->make_current());
  return is_seen_within(patience, [this] {
    return device_->api().ask<&CudaSymbols::stream_query>(nccl_->stream().handle());
  });
}

Outcome<std::string> CommDevice::introduce(bool with_id) const {
  PayloadWriter writer;
  writer.put_i32(callers_comm_ != nullptr ? 1 : 0);
  writer.put_i32(nccl_api_->version());
  std::string id;
  if (with_id && callers_comm_ == nullptr) {
    NORIA_TRY_ASSIGN(const nccl::UniqueId made, NcclCollective::make_id(*nccl_api_));
    id.assign(made.bytes, sizeof made.bytes);
  }
  writer.put_text(id);
  return writer.bytes();
}

Outcome<Ok> CommDevice::join(const Meeting& meeting,
                             const std::vector<std::string>& introductions) {
  nccl::UniqueId id{};
  int32_t first_has_comm = 0, first_version = 0;
  for (size_t rank = 0; rank < introductions.size(); ++rank) {
    PayloadReader reader(introductions[rank]);
    const int32_t has_comm = reader.take_i32(), version = reader.take_i32();
    const std::string bytes = reader.take_text();
    if (rank == 0) {
      first_has_comm = has_comm;
      first_version = version;
      std::memcpy(id.bytes, bytes.data(), std::min(bytes.size(), sizeof id.bytes));
    }
    const std::string who = "rank " + std::to_string(rank);
    if (has_comm != first_has_comm)
      return Failure{NORIA_E_MISMATCH,
                     (has_comm != 0 ? who : "rank 0") + " gave an nccl_comm and " +
                         (has_comm != 0 ? "rank 0" : who) + " none: all give one, or no rank does"};
    if (version != first_version)
      return Failure{NORIA_E_MISMATCH, "rank 0 has NCCL " + nccl_version_text(first_version) +
                                           " and " + who + " " + nccl_version_text(version) +
                                           ": NCCL wants the same everywhere"};
  }
  timeout_ = meeting.timeout;
  const NcclCollective::Options options{
      .device = device_.get(), .nccl = nccl_api_, .rank = meeting.rank, .size = meeting.size};
  auto made = callers_comm_ != nullptr
                  ? NcclCollective::adopt(options, callers_comm_)
                  : NcclCollective::join(options, id, meeting.control, meeting.deadline);
  if (!made) return Failure{made.failure().code, device_->name() + ": " + made.failure().text};
  nccl_ = std::move(*made);
  return Ok{};
}

Outcome<Ok> CommDevice::start(Engine& engine, const Meeting& meeting) {
  NORIA_TRY_ASSIGN(watch_, DeviceWatch::create({nccl_.get(), &engine, meeting.control}));
  return Ok{};
}

Outcome<Ok> CommDevice::try_out(const Engine& engine, Nanoseconds deadline) {
  NORIA_TRY_ASSIGN(CudaEvent event, events_.take());
  DeviceWork trial(std::move(event));
  // At first NCCL connects, which is the start's affair.
  const Nanoseconds bound = std::max(deadline - now_ns(), 0_ms);
  NORIA_TRY(
      enqueue_within(bound, Kind::barrier, 0, nullptr, nccl_->stream().handle(), &trial.event()));
  NORIA_TRY_ASSIGN(const bool is_done, trial.wait(engine, deadline));
  if (is_done) return Ok{};
  return Failure{NORIA_E_TIMEOUT, device_->name() +
                                      ": NCCL's first operation did not end within the start "
                                      "time-out; NCCL_DEBUG=INFO shows what it stands at"};
}

bool CommDevice::finish(Nanoseconds deadline) {
  return watch_ == nullptr || watch_->wait_until_idle(deadline);
}

void CommDevice::leave(bool is_good, Nanoseconds deadline) {
  if (nccl_ == nullptr) return;
  const bool is_left = is_good || (nccl_->owner() == NcclCollective::Owner::caller &&
                                   watch_ != nullptr && watch_->wait_until_idle(0));
  if (is_left)
    nccl_->leave(deadline);
  else
    nccl_->abort();
}

// ---- operations ---------------------------------------------------------------------------------

Outcome<Ok> CommDevice::check(const std::string& function, const Part* part) const {
  if (part == nullptr || part->count == 0) return Ok{};
  if (part->in != nullptr) NORIA_TRY(device_->check_memory(function + ": in", part->in));
  if (part->out != nullptr && part->out != part->in)
    NORIA_TRY(device_->check_memory(function + ": out", part->out));
  return Ok{};
}

Outcome<Ok> CommDevice::enqueue(Kind kind, int32_t root, const Part* part, cuda::Stream stream,
                                CudaEvent* done) {
  return enqueue_within(timeout_, kind, root, part, stream, done);
}

Outcome<Ok> CommDevice::enqueue_within(Nanoseconds bound, Kind kind, int32_t root, const Part* part,
                                       cuda::Stream stream, CudaEvent* done) {
  NORIA_TRY_ASSIGN(const CudaDevice::Current current, device_->make_current());
  DeviceOperation& pair = nccl_->begin(bound);
  NORIA_TRY(pair.ready.record(stream));
  NORIA_TRY(call(pair, kind, root, part));
  NORIA_TRY(pair.done.hold_back(stream));
  if (done != nullptr) NORIA_TRY(done->record(nccl_->stream().handle()));
  return Ok{};
}

Outcome<Ok> CommDevice::call(DeviceOperation& pair, Kind kind, int32_t root, const Part* part) {
  if (kind == Kind::barrier) {
    void* const scratch = reinterpret_cast<void*>(scratch_.pointer());
    return nccl_->all_reduce(
        pair, {.in = scratch, .out = scratch, .count = 1, .dtype = NORIA_INT32, .op = NORIA_MAX});
  }
  const bool has_blocks = !part->edges.empty();
  const DevicePart of_device{.in = part->in,
                             .out = part->out,
                             .count = has_blocks ? part->edges[1] : part->count,
                             .dtype = part->dtype,
                             .op = part->op};
  switch (kind) {
    case Kind::barrier: break;
    case Kind::all_reduce: return nccl_->all_reduce(pair, of_device);
    case Kind::broadcast: return nccl_->broadcast(pair, of_device, root);
    case Kind::reduce_scatter:
      return is_even(part->edges) ? nccl_->reduce_scatter(pair, of_device)
                                  : nccl_->reduce_scatter_v(pair, of_device, part->edges);
    case Kind::all_gather:
      return is_even(part->edges) ? nccl_->all_gather(pair, of_device)
                                  : nccl_->all_gather_v(pair, of_device, part->edges);
  }
  return Failure{NORIA_E_INTERNAL, "a collective without a kind"};
}

}  // namespace noria::bucketing
