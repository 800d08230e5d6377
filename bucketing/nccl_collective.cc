#include "bucketing/nccl_collective.hpp"

#include <algorithm>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "base/log.hpp"
#include "bucketing/kernels.hpp"
#include "bucketing/pause.hpp"

namespace noria::bucketing {
namespace {

// How long who aborts waits for a launcher to come out of NCCL. One that does not is blocked there,
// as in a caller's communicator that blocks, and comes out by the abort.
constexpr Nanoseconds kComesOut = 1_s;
// How long who gives memory back waits for the watch to abort, and for NCCL to come back from it.
constexpr Nanoseconds kEnds = 3_s;

Failure is_over() { return {NORIA_E_ABORTED, "NCCL's communicator was aborted"}; }

template <class T>
auto* at(T* memory, uint64_t element, noria_dtype dtype) {
  using Byte = std::conditional_t<std::is_const_v<T>, const std::byte, std::byte>;
  return memory == nullptr ? nullptr : static_cast<Byte*>(memory) + element * dtype_bytes(dtype);
}

}  // namespace

// ---- life ---------------------------------------------------------------------------------------

NcclCollective::NcclCollective(const Options& options, Owner owner, CudaStream stream,
                               DeviceOperations operations)
    : options_(options),
      owner_(owner),
      stream_(std::move(stream)),
      operations_(std::move(operations)) {}

NcclCollective::~NcclCollective() {
  if (owner_ == Owner::noria) abort();
}

Outcome<nccl::UniqueId> NcclCollective::make_id(const NcclApi& nccl) {
  nccl::UniqueId id{};
  NORIA_TRY(nccl.call<&NcclSymbols::get_unique_id>(&id));
  return id;
}

Outcome<std::unique_ptr<NcclCollective>> NcclCollective::join(const Options& options,
                                                              const nccl::UniqueId& id,
                                                              const ControlPlane* control,
                                                              Nanoseconds deadline) {
  NORIA_TRY_ASSIGN(CudaStream stream, CudaStream::create(*options.device));
  NORIA_TRY_ASSIGN(DeviceOperations operations, DeviceOperations::create(*options.device));
  NORIA_TRY_ASSIGN(const CudaDevice::Current current, options.device->make_current());
  std::unique_ptr<NcclCollective> made(
      new NcclCollective(options, Owner::noria, std::move(stream), std::move(operations)));
  nccl::Config config;
  config.blocking = 0;
  const auto begun = options.nccl->ask<&NcclSymbols::comm_init>(&made->comm_, options.size, id,
                                                                options.rank, &config);
  const auto joined = made->settle(begun, deadline, control);
  if (joined) return made;
  const Failure& failure = joined.failure();
  if (failure.code != NORIA_E_TIMEOUT) return failure;
  return Failure{
      NORIA_E_TIMEOUT,
      "NCCL's communicator of " + std::to_string(options.size) +
          " ranks was not made within the start time-out: a rank did not come to it, or "
          "its network does not reach the others; NCCL_DEBUG=INFO shows how far it is, "
          "NCCL_SOCKET_IFNAME chooses the interface, NORIA_START_TIMEOUT_MS is the bound"};
}

Outcome<std::unique_ptr<NcclCollective>> NcclCollective::adopt(const Options& options,
                                                               nccl::Comm comm) {
  const NcclApi& nccl = *options.nccl;
  int size = 0, rank = 0, device = 0;
  NORIA_TRY(nccl.call<&NcclSymbols::comm_count>(comm, &size));
  NORIA_TRY(nccl.call<&NcclSymbols::comm_rank>(comm, &rank));
  NORIA_TRY(nccl.call<&NcclSymbols::comm_device>(comm, &device));
  const auto differs = [](const char* what, int theirs, int ours) {
    return Failure{NORIA_E_ARG, std::string("nccl_comm: its ") + what + " is " +
                                    std::to_string(theirs) + ", and this communicator's " +
                                    std::to_string(ours) +
                                    ": give one of the same ranks, in the same order, on the same "
                                    "device"};
  };
  if (size != options.size) return differs("size", size, options.size);
  if (rank != options.rank) return differs("rank", rank, options.rank);
  if (device != options.device->ordinal())
    return differs("device", device, options.device->ordinal());
  NORIA_TRY_ASSIGN(CudaStream stream, CudaStream::create(*options.device));
  NORIA_TRY_ASSIGN(DeviceOperations operations, DeviceOperations::create(*options.device));
  std::unique_ptr<NcclCollective> made(
      new NcclCollective(options, Owner::caller, std::move(stream), std::move(operations)));
  made->comm_ = comm;
  return made;
}

void NcclCollective::abort() {
  if (is_over_.exchange(true) || comm_ == nullptr) return;
  const Nanoseconds until = now_ns() + kComesOut;
  const Pause pause;
  while (inside_.is_taken() && now_ns() < until) pause.take();
  const auto current = options_.device->make_current();
  // It frees the communicator whatever it answers.
  if (const auto ended = options_.nccl->ask<&NcclSymbols::comm_abort>(comm_); !ended)
    log(LogLevel::warn, "%s: %s", options_.device->name().c_str(), ended.failure().text.c_str());
  has_ended_.store(true);
}

void NcclCollective::leave(Nanoseconds deadline) {
  if (is_over_.load()) return;
  const auto current = options_.device->make_current();
  bool is_out_of_step = false, has_forgotten = true;
  if (step_in()) {
    is_out_of_step = is_out_of_step_;
    has_forgotten = !is_out_of_step || registered_.empty();
    if (!is_out_of_step)
      for (void* const handle : registered_) has_forgotten &= forget(handle);
    registered_.clear();
    inside_.leave();
  }
  if (owner_ == Owner::caller) {
    is_over_.store(true);
    // One of ours takes its registrations with it, a caller's goes on and counts on the memory.
    return has_ended_.store(has_forgotten);
  }
  if (is_out_of_step) return abort();
  const NcclApi& nccl = *options_.nccl;
  if (!settle(nccl.ask<&NcclSymbols::comm_finalize>(comm_), deadline, nullptr)) return abort();
  is_over_.store(true);
  if (const auto freed = nccl.ask<&NcclSymbols::comm_destroy>(comm_); !freed)
    log(LogLevel::warn, "%s: %s", options_.device->name().c_str(), freed.failure().text.c_str());
  has_ended_.store(true);
}

// ---- NCCL goes on by itself ---------------------------------------------------------------------

Outcome<Ok> NcclCollective::settle(const Outcome<bool>& answer, Nanoseconds deadline,
                                   const ControlPlane* control) const {
  if (!answer) return answer.failure();
  if (*answer) return Ok{};
  const Pause pause;
  while (true) {
    nccl::Result state = nccl::Result::success;
    NORIA_TRY(options_.nccl->call<&NcclSymbols::comm_get_async_error>(comm_, &state));
    if (state == nccl::Result::success) return Ok{};
    if (state != nccl::Result::in_progress) return options_.nccl->failed("NCCL", state);
    if (is_over_.load()) return is_over();
    if (control != nullptr && control->failed()) return control->failure();
    if (now_ns() >= deadline)
      return Failure{NORIA_E_TIMEOUT,
                     "NCCL did not put an operation on its stream in time: it "
                     "still connects, or a rank does not come; NCCL_DEBUG=INFO "
                     "shows how far it is"};
    pause.take();
  }
}

Outcome<Ok> NcclCollective::look() {
  if (!inside_.try_take()) return Ok{};
  nccl::Result state = nccl::Result::success;
  const auto asked = options_.nccl->call<&NcclSymbols::comm_get_async_error>(comm_, &state);
  inside_.leave();
  NORIA_TRY(asked);
  if (state == nccl::Result::success || state == nccl::Result::in_progress) return Ok{};
  return options_.nccl->failed("NCCL", state);
}

// ---- operations ---------------------------------------------------------------------------------

bool NcclCollective::step_in() {
  inside_.take();  // the watch has it for one question
  if (!is_over_.load()) return true;
  inside_.leave();
  return false;
}

template <class Enqueue>
Outcome<Ok> NcclCollective::launch(DeviceOperation& pair, Enqueue enqueue) {
  NORIA_TRY(pair.ready.hold_back(stream_.handle()));
  if (!step_in()) return is_over();
  const Outcome<bool> answer = enqueue();
  Outcome<Ok> enqueued = Ok{};
  if (!answer || !*answer) enqueued = settle(answer, now_ns() + operations_.bound(), nullptr);
  if (!enqueued) is_out_of_step_ = true;
  inside_.leave();
  NORIA_TRY(enqueued);
  NORIA_TRY(pair.done.record(stream_.handle()));
  operations_.launched();
  return Ok{};
}

Outcome<Ok> NcclCollective::all_reduce(DeviceOperation& pair, const DevicePart& part) {
  return launch(pair, [&] {
    return options_.nccl->ask<&NcclSymbols::all_reduce>(part.in, part.out, part.count, part.dtype,
                                                        part.op, comm_, stream_.handle());
  });
}

Outcome<Ok> NcclCollective::reduce_scatter(DeviceOperation& pair, const DevicePart& part) {
  return launch(pair, [&] {
    return options_.nccl->ask<&NcclSymbols::reduce_scatter>(
        part.in, part.out, part.count, part.dtype, part.op, comm_, stream_.handle());
  });
}

Outcome<Ok> NcclCollective::all_gather(DeviceOperation& pair, const DevicePart& part) {
  return launch(pair, [&] {
    return options_.nccl->ask<&NcclSymbols::all_gather>(part.in, part.out, part.count, part.dtype,
                                                        comm_, stream_.handle());
  });
}

Outcome<Ok> NcclCollective::broadcast(DeviceOperation& pair, const DevicePart& part, int32_t root) {
  return launch(pair, [&] {
    return options_.nccl->ask<&NcclSymbols::broadcast>(part.in, part.out, part.count, part.dtype,
                                                       root, comm_, stream_.handle());
  });
}

// NCCL's own have blocks of one size. As a group the ranks' operations go at once.
template <class EnqueueBlock>
Outcome<bool> NcclCollective::enqueue_blocks(EnqueueBlock enqueue_block) {
  NORIA_TRY(options_.nccl->call<&NcclSymbols::group_start>());
  Outcome<bool> first_failure = true;
  for (int32_t rank = 0; rank < options_.size && first_failure; ++rank)
    if (Outcome<bool> answer = enqueue_block(rank); !answer) first_failure = std::move(answer);
  // Whatever went wrong: a group that was begun is ended.
  const Outcome<bool> ended = options_.nccl->ask<&NcclSymbols::group_end>();
  return first_failure ? ended : first_failure;
}

Outcome<Ok> NcclCollective::reduce_scatter_v(DeviceOperation& pair, const DevicePart& part,
                                             const std::vector<uint64_t>& edges) {
  return launch(pair, [&] {
    return enqueue_blocks([&](int32_t rank) {
      const auto block = static_cast<size_t>(rank);
      // `out` is looked at on the root alone.
      return options_.nccl->ask<&NcclSymbols::reduce>(
          at(part.in, edges[block], part.dtype), part.out, edges[block + 1] - edges[block],
          part.dtype, part.op, rank, comm_, stream_.handle());
    });
  });
}

Outcome<Ok> NcclCollective::all_gather_v(DeviceOperation& pair, const DevicePart& part,
                                         const std::vector<uint64_t>& edges) {
  return launch(pair, [&] {
    return enqueue_blocks([&](int32_t rank) {
      const auto block = static_cast<size_t>(rank);
      auto* const place = at(part.out, edges[block], part.dtype);
      const void* const from = rank == options_.rank ? part.in : place;
      return options_.nccl->ask<&NcclSymbols::broadcast>(
          from, place, edges[block + 1] - edges[block], part.dtype, rank, comm_, stream_.handle());
    });
  });
}

// ---- memory -------------------------------------------------------------------------------------

void* NcclCollective::register_memory(cuda::Pointer memory, size_t bytes) {
  if (options_.nccl->symbols().comm_register == nullptr || bytes == 0) return nullptr;
  const auto current = options_.device->make_current();
  if (!step_in()) return nullptr;
  void* handle = nullptr;
  const auto registered = options_.nccl->call<&NcclSymbols::comm_register>(
      comm_, reinterpret_cast<void*>(memory), bytes, &handle);
  const bool is_news = !registered && !std::exchange(has_told_, true);
  // NCCL_LOCAL_REGISTER=0: all is well, and nothing was registered.
  if (registered && handle != nullptr) registered_.push_back(handle);
  inside_.leave();
  if (registered) return handle;
  if (is_news)
    log(LogLevel::info, "%s: %s; NCCL copies through buffers of its own",
        options_.device->name().c_str(), registered.failure().text.c_str());
  return nullptr;
}

bool NcclCollective::deregister_memory(void* handle) {
  if (handle == nullptr) return true;
  const auto current = options_.device->make_current();
  if (!step_in()) return await_end();
  const bool is_out_of_step = is_out_of_step_;
  const bool is_forgotten = !is_out_of_step && forget(handle);
  if (is_forgotten) registered_.erase(std::find(registered_.begin(), registered_.end(), handle));
  inside_.leave();
  return is_out_of_step ? await_end() : is_forgotten;
}

// With the communicator its registrations are gone.
bool NcclCollective::await_end() const {
  const Nanoseconds until = now_ns() + kEnds;
  const Pause pause;
  while (!has_ended_.load() && now_ns() < until) pause.take();
  return has_ended_.load();
}

bool NcclCollective::forget(void* handle) {
  const auto forgotten = options_.nccl->call<&NcclSymbols::comm_deregister>(comm_, handle);
  if (!forgotten)
    log(LogLevel::info, "%s: %s", options_.device->name().c_str(),
        forgotten.failure().text.c_str());
  return forgotten.is_ok();
}

}  // namespace noria::bucketing
