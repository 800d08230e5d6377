// The reducer's C functions: arguments are looked at here, and nothing else is done.
#include <noria/bucketing.h>
#include <noria/observe.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "bucketing/c_boundary.hpp"
#include "bucketing/comm.hpp"
#include "bucketing/cuda_stream.hpp"
#include "bucketing/reducer.hpp"
#include "bucketing/tensor_shape.hpp"

struct noria_reducer {
  std::shared_ptr<noria::bucketing::Comm> comm;  // first: the reducer uses what belongs to it
  noria::bucketing::Reducer reducer;
  noria::bucketing::Origin origin;
};

namespace noria::bucketing {
namespace {

Failure is_null(const char* what) { return Failure{NORIA_E_ARG, std::string(what) + " is NULL"}; }

template <class T>
noria_status answer(const Outcome<T>& outcome) {
  return outcome.is_ok() ? NORIA_OK : refuse(outcome.failure());
}

// Of copies on a device it is the caller's wish; what is not packed there does not look at it.
Outcome<Ok> check_max_in_flight(const noria_reducer_config& config) {
  if (config.max_in_flight == 0 || config.device_kind == NORIA_STREAM_CUDA ||
      (config.arena == 0 && config.shard == NORIA_SHARD_NONE))
    return Ok{};
  return Failure{NORIA_E_ARG,
                 "noria_reducer_config.max_in_flight is " + std::to_string(config.max_in_flight) +
                     ": it bounds copies; views (arena) and shards are there for all buckets at "
                     "once, so leave it 0"};
}

// What a reducer on a device does not do in this version.
Outcome<Ok> check_device(const noria_reducer_config& config) {
  if (config.device_kind > NORIA_STREAM_CUDA)
    return Failure{NORIA_E_ARG, "noria_reducer_config.device_kind is " +
                                    std::to_string(config.device_kind) +
                                    ": it must be NORIA_STREAM_HOST or NORIA_STREAM_CUDA"};
  if (config.device_kind == NORIA_STREAM_HOST) return Ok{};
  const auto refuse = [](const std::string& what) {
    return Failure{NORIA_E_UNSUPPORTED, "noria_reducer_config." + what};
  };
  if (config.nonfinite != NORIA_NONFINITE_PASS)
    return refuse("nonfinite: gradients on a device are not looked through; look at the results");
  return Ok{};
}

Outcome<Ok> check_shard(const noria_reducer_config& config) {
  if (config.shard > NORIA_SHARD_REDUCE_SCATTER)
    return Failure{NORIA_E_ARG, "noria_reducer_config.shard is " + std::to_string(config.shard) +
                                    ": it must be NORIA_SHARD_NONE or NORIA_SHARD_REDUCE_SCATTER"};
  if (config.shard == NORIA_SHARD_NONE) return Ok{};
  if (config.plan != NORIA_PLAN_PLANNED) return Ok{};
  return Failure{NORIA_E_ARG,
                 "noria_reducer_config.shard needs buckets that stay, as an optimizer's state is "
                 "shared out by them: take NORIA_PLAN_DDP or _STRICT, or a plan that a planned "
                 "reducer without shards saved, by noria_reducer_load_plan()"};
}

Outcome<ReducerConfig> read_config(const noria_reducer_config* given) {
  NORIA_TRY_ASSIGN(const auto config, read_struct(given, "noria_reducer_config"));
  if (config.arena > 1)
    return Failure{NORIA_E_ARG, "noria_reducer_config.arena is " + std::to_string(config.arena) +
                                    ": it must be 0 or 1"};
  if (config.op != NORIA_AVG && config.op != NORIA_SUM)
    return Failure{NORIA_E_ARG, "noria_reducer_config.op is " + std::to_string(config.op) +
                                    ": it must be NORIA_AVG or NORIA_SUM"};
  if (config.plan > NORIA_PLAN_PLANNED)
    return Failure{NORIA_E_ARG, "noria_reducer_config.plan is " + std::to_string(config.plan) +
                                    ": it must be NORIA_PLAN_DDP, _STRICT or _PLANNED"};
  if (config.order > NORIA_ORDER_ARRIVAL)
    return Failure{NORIA_E_ARG, "noria_reducer_config.order is " + std::to_string(config.order) +
                                    ": it must be NORIA_ORDER_REVERSE or NORIA_ORDER_ARRIVAL"};
  if (config.average > NORIA_AVERAGE_SPLIT_SQRT)
    return Failure{NORIA_E_ARG, "noria_reducer_config.average is " +
                                    std::to_string(config.average) +
                                    ": it must be NORIA_AVERAGE_POST, _PRE or _SPLIT_SQRT"};
  if (config.op != NORIA_AVG && config.average != NORIA_AVERAGE_POST)
    return Failure{
        NORIA_E_ARG,
        "noria_reducer_config.average is set and op is NORIA_SUM, which divides nothing"};
  if (config.wire_dtype != 0 && config.wire_dtype != NORIA_FLOAT16 &&
      config.wire_dtype != NORIA_BFLOAT16)
    return Failure{NORIA_E_ARG, "noria_reducer_config.wire_dtype is " +
                                    std::to_string(config.wire_dtype) +
                                    ": it must be 0, NORIA_FLOAT16 or NORIA_BFLOAT16"};
  if (config.unused > NORIA_UNUSED_KEEP)
    return Failure{NORIA_E_ARG, "noria_reducer_config.unused is " + std::to_string(config.unused) +
                                    ": it must be NORIA_UNUSED_ERROR, _ZERO or _KEEP"};
  if (config.static_graph > 1)
    return Failure{NORIA_E_ARG, "noria_reducer_config.static_graph is " +
                                    std::to_string(config.static_graph) + ": it must be 0 or 1"};
  if (config.nonfinite > NORIA_NONFINITE_ERROR)
    return Failure{NORIA_E_ARG, "noria_reducer_config.nonfinite is " +
                                    std::to_string(config.nonfinite) +
                                    ": it must be NORIA_NONFINITE_PASS or _ERROR"};
  NORIA_TRY(check_shard(config));
  NORIA_TRY(check_device(config));
  NORIA_TRY(check_max_in_flight(config));
  const bool is_on_device = config.device_kind == NORIA_STREAM_CUDA;
  ReducerConfig checked{.arena = config.arena == 1,
                        .op = config.op,
                        .step_timeout = Nanoseconds{config.step_timeout_ms} * 1'000'000,
                        .plan = static_cast<PlanKind>(config.plan),
                        .order = static_cast<Order>(config.order),
                        .average = static_cast<AverageMode>(config.average),
                        .wire_dtype = config.wire_dtype,
                        .unused = config.unused,
                        .static_graph = config.static_graph == 1,
                        .is_nonfinite_error = config.nonfinite == NORIA_NONFINITE_ERROR,
                        .is_sharded = config.shard == NORIA_SHARD_REDUCE_SCATTER,
                        .max_in_flight = config.max_in_flight,
                        .is_on_device = is_on_device};
  if (is_on_device && config.max_in_flight == 0) checked.max_in_flight = kDeviceSlots;
  if (config.bucket_bytes != 0) checked.caps.bucket_bytes = config.bucket_bytes;
  if (config.first_bucket_bytes != 0) checked.caps.first_bucket_bytes = config.first_bucket_bytes;
  if (config.last_bucket_bytes != 0) checked.caps.last_bucket_bytes = config.last_bucket_bytes;
  return checked;
}

constexpr uint64_t kMostDimensions = 64;  // frameworks' most

Outcome<uint32_t> add(Reducer& reducer, const noria_tensor_desc* given) {
  NORIA_TRY_ASSIGN(const auto tensor, read_struct(given, "noria_tensor_desc"));
  if (tensor.name == nullptr) return is_null("noria_tensor_desc.name");
  if (tensor.ndim != 0) {
    if (tensor.shape == nullptr) return is_null("noria_tensor_desc.shape");
    if (tensor.ndim > kMostDimensions)
      return Failure{NORIA_E_ARG, "noria_tensor_desc.ndim: no tensor has " +
                                      std::to_string(tensor.ndim) + " dimensions"};
    const size_t strides = tensor.strides != nullptr ? tensor.ndim : 0;
    NORIA_TRY(check_shape(tensor.name, tensor.numel, {tensor.shape, tensor.ndim},
                          {tensor.strides, strides}));
  }
  return reducer.add(tensor.name, tensor.dtype, tensor.numel, tensor.expected_fires);
}

// Before the step is ended: what cannot be answered must not end it.
Outcome<Ok> check_report(const noria_step_report* report) {
  if (report == nullptr) return Ok{};
  NORIA_TRY(read_struct(report, "noria_step_report"));
  return Ok{};
}

Outcome<Ok> end_step(
    Reducer& reducer, const noria_stream* consumer, noria_step_report* report,
    const std::function<Outcome<noria_step_info>(std::optional<cuda::Stream>)>& end) {
  NORIA_TRY_ASSIGN(const std::optional<cuda::Stream> stream,
                   read_stream(consumer, reducer.streams()));
  NORIA_TRY(check_report(report));
  NORIA_TRY_ASSIGN(const noria_step_info step, end(stream));
  if (report == nullptr) return Ok{};
  return write_struct(report,
                      noria_step_report{.struct_size = sizeof(noria_step_report),
                                        .buckets = step.buckets,
                                        .step = step.step,
                                        .bytes = step.bytes,
                                        .step_ns = step.end_ns - step.begin_ns,
                                        .communication_ns = step.communication_ns,
                                        .exposed_ns = step.exposed_ns,
                                        .order_wait_ns = step.order_wait_ns,
                                        .plan_version = reducer.plan_version()},
                      "noria_step_report");
}

// Not inline: what it needs would be saved and restored around every gradient of the host.
[[gnu::noinline]] noria_status ready_from(Reducer& reducer, uint32_t id, const void* grad,
                                          const noria_stream* producer) {
  const auto stream = read_stream(producer, reducer.streams());
  if (!stream.is_ok()) return refuse(stream.failure());
  return answer(*stream ? reducer.grad_ready_from(id, grad, **stream)
                        : reducer.grad_ready(id, grad));
}

// The caller's array has the stride of the caller's struct, which its first element tells.
template <class T>
Outcome<Ok> copy_array(std::span<const T> all, T* out, uint32_t capacity, const char* type) {
  if (capacity == 0) return Ok{};
  const uint32_t stride = out->struct_size;
  NORIA_TRY(check_struct_size(stride, type));
  auto* place = reinterpret_cast<char*>(out);
  for (uint32_t i = 0; i < capacity && i < all.size(); ++i, place += stride)
    fill_struct(place, all[i], stride);
  return Ok{};
}

// `ask` gives an Outcome of what converts to a span of T.
template <class T, class Ask>
noria_status give_array(const noria_reducer* reducer, Ask ask, T* out, uint32_t capacity,
                        uint32_t* count, const char* type) {
  if (!is_usable(reducer)) return refuse(unusable(reducer, "reducer"));
  if (count == nullptr) return refuse(is_null("count"));
  if (out == nullptr && capacity != 0) return refuse(is_null("out"));
  const auto all = ask(reducer->reducer);
  if (!all.is_ok()) return refuse(all.failure());
  const auto copied = copy_array<T>(all.value(), out, capacity, type);
  if (copied.is_ok()) *count = static_cast<uint32_t>(all->size());
  return answer(copied);
}

}  // namespace
}  // namespace noria::bucketing

using namespace noria::bucketing;  // NOLINT: this file is where the C names are made of these

noria_status noria_reducer_create(noria_comm* comm, const noria_reducer_config* config,
                                  noria_reducer** reducer) {
  if (!is_usable(comm)) return refuse(unusable(comm, "comm"));
  if (reducer == nullptr) return refuse(is_null("reducer"));
  const auto checked = read_config(config);
  if (!checked.is_ok()) return refuse(checked.failure());
  if (checked->is_on_device && comm->comm->reducer_host().device.device == nullptr)
    return refuse({NORIA_E_ARG,
                   "noria_reducer_config.device_kind is NORIA_STREAM_CUDA, and the communicator is "
                   "of the host: make it with device_kind NORIA_STREAM_CUDA too"});
  *reducer = new noria_reducer{.comm = comm->comm,
                               .reducer = Reducer(comm->comm->reducer_host(), checked.value()),
                               .origin = {}};
  return NORIA_OK;
}

noria_status noria_reducer_add(noria_reducer* reducer, const noria_tensor_desc* tensor,
                               uint32_t* id) {
  if (!is_usable(reducer)) return refuse(unusable(reducer, "reducer"));
  if (id == nullptr) return refuse(is_null("id"));
  const auto added = add(reducer->reducer, tensor);
  if (added.is_ok()) *id = added.value();
  return answer(added);
}

noria_status noria_reducer_seal(noria_reducer* reducer) {
  if (!is_usable(reducer)) return refuse(unusable(reducer, "reducer"));
  return answer(reducer->reducer.seal());
}

noria_status noria_reducer_set_hook(noria_reducer* reducer, noria_hook_moment moment,
                                    noria_bucket_hook hook, void* user) {
  if (!is_usable(reducer)) return refuse(unusable(reducer, "reducer"));
  if (moment != NORIA_HOOK_BEFORE && moment != NORIA_HOOK_AFTER)
    return refuse({NORIA_E_ARG, "noria_reducer_set_hook: moment is " + std::to_string(moment) +
                                    ": it must be NORIA_HOOK_BEFORE or _AFTER"});
  return answer(reducer->reducer.set_hook(moment, {.function = hook, .user = user}));
}

noria_status noria_reducer_load_plan(noria_reducer* reducer, const char* path) {
  if (!is_usable(reducer)) return refuse(unusable(reducer, "reducer"));
  if (path == nullptr) return refuse(is_null("path"));
  return answer(reducer->reducer.load_plan(path));
}

noria_status noria_reducer_save_plan(const noria_reducer* reducer, const char* path) {
  if (!is_usable(reducer)) return refuse(unusable(reducer, "reducer"));
  if (path == nullptr) return refuse(is_null("path"));
  return answer(reducer->reducer.save_plan(path));
}

noria_status noria_reducer_view(noria_reducer* reducer, uint32_t id, void** ptr, uint64_t* bytes) {
  if (!is_usable(reducer)) return refuse(unusable(reducer, "reducer"));
  if (ptr == nullptr) return refuse(is_null("ptr"));
  if (bytes == nullptr) return refuse(is_null("bytes"));
  const auto view = reducer->reducer.view(id);
  if (!view.is_ok()) return refuse(view.failure());
  *ptr = view->data();
  *bytes = view->size();
  return NORIA_OK;
}

noria_status noria_reducer_shard(noria_reducer* reducer, uint32_t bucket, noria_shard_info* info) {
  if (!is_usable(reducer)) return refuse(unusable(reducer, "reducer"));
  const auto shard = reducer->reducer.shard(bucket);
  if (!shard.is_ok()) return refuse(shard.failure());
  return answer(write_struct(info, shard.value(), "noria_shard_info"));
}

noria_status noria_reducer_shard_ranges(noria_reducer* reducer, noria_shard_range* out,
                                        uint32_t capacity, uint32_t* count) {
  return give_array(
      reducer, [](const Reducer& mine) { return mine.shard_ranges(); }, out, capacity, count,
      "noria_shard_range");
}

noria_status noria_reducer_layout(noria_reducer* reducer, uint32_t id, uint64_t* offset,
                                  uint64_t* total_bytes) {
  if (!is_usable(reducer)) return refuse(unusable(reducer, "reducer"));
  if (offset == nullptr) return refuse(is_null("offset"));
  if (total_bytes == nullptr) return refuse(is_null("total_bytes"));
  const auto found = reducer->reducer.offset_of(id);
  if (!found.is_ok()) return refuse(found.failure());
  *offset = found.value();
  *total_bytes = reducer->reducer.layout_bytes();
  return NORIA_OK;
}

noria_status noria_reducer_all_gather(noria_reducer* reducer, void* memory, uint64_t bytes) {
  if (!is_usable(reducer)) return refuse(unusable(reducer, "reducer"));
  if (memory == nullptr && bytes != 0) return refuse(is_null("memory"));
  return answer(reducer->reducer.all_gather(static_cast<std::byte*>(memory), bytes, std::nullopt));
}

noria_status noria_reducer_all_gather_as(noria_reducer* reducer, void* memory, uint64_t bytes,
                                         noria_dtype dtype) {
  if (!is_usable(reducer)) return refuse(unusable(reducer, "reducer"));
  if (memory == nullptr && bytes != 0) return refuse(is_null("memory"));
  return answer(reducer->reducer.all_gather(static_cast<std::byte*>(memory), bytes, dtype));
}

noria_status noria_step_begin(noria_reducer* reducer, uint32_t flags) {
  if (!is_usable(reducer)) return refuse(unusable(reducer, "reducer"));
  if ((flags & ~uint32_t{NORIA_STEP_ACCUMULATE}) != 0)
    return refuse({NORIA_E_ARG, "noria_step_begin: flags are " + std::to_string(flags) +
                                    ": NORIA_STEP_ACCUMULATE alone is known"});
  return answer(reducer->reducer.step_begin((flags & NORIA_STEP_ACCUMULATE) != 0));
}

NORIA_HOT noria_status noria_grad_ready(noria_reducer* reducer, uint32_t id, const void* grad,
                                        const noria_stream* producer) {
  if (!is_usable(reducer)) [[unlikely]]
    return refuse(unusable(reducer, "reducer"));
  if (producer != nullptr) return ready_from(reducer->reducer, id, grad, producer);
  return answer(reducer->reducer.grad_ready(id, grad));
}

noria_status noria_grad_unused(noria_reducer* reducer, const uint32_t* ids, uint32_t count) {
  if (!is_usable(reducer)) return refuse(unusable(reducer, "reducer"));
  if (ids == nullptr && count != 0) return refuse(is_null("ids"));
  return answer(reducer->reducer.grad_unused({ids, count}));
}

noria_status noria_grad_result(noria_reducer* reducer, uint32_t id, const noria_stream* consumer,
                               uint32_t timeout_ms, const void** result) {
  if (!is_usable(reducer)) return refuse(unusable(reducer, "reducer"));
  if (result == nullptr) return refuse(is_null("result"));
  const auto stream = read_stream(consumer, reducer->reducer.streams());
  if (!stream.is_ok()) return refuse(stream.failure());
  const auto found =
      reducer->reducer.result(id, noria::Nanoseconds{timeout_ms} * 1'000'000, *stream);
  if (found.is_ok()) *result = found.value();
  return answer(found);
}

noria_status noria_step_end(noria_reducer* reducer, const noria_stream* consumer,
                            noria_step_report* report) {
  if (!is_usable(reducer)) return refuse(unusable(reducer, "reducer"));
  Reducer& mine = reducer->reducer;
  return answer(
      end_step(mine, consumer, report, [&mine](auto stream) { return mine.step_end(stream); }));
}

noria_status noria_step_join(noria_reducer* reducer, const noria_stream* consumer,
                             noria_step_report* report, uint32_t* all_joined) {
  if (!is_usable(reducer)) return refuse(unusable(reducer, "reducer"));
  if (all_joined == nullptr) return refuse(is_null("all_joined"));
  Reducer& mine = reducer->reducer;
  bool is_over = false;
  const auto joined = end_step(mine, consumer, report,
                               [&](auto stream) { return mine.step_join(&is_over, stream); });
  if (joined.is_ok()) *all_joined = is_over ? 1 : 0;
  return answer(joined);
}

noria_status noria_reducer_reset(noria_reducer* reducer) {
  if (!is_usable(reducer)) return refuse(unusable(reducer, "reducer"));
  return answer(reducer->reducer.reset());
}

// A child's copy stays as it is: what it would give back is its parent's.
void noria_reducer_destroy(noria_reducer* reducer) {
  if (is_usable(reducer)) delete reducer;
}

noria_status noria_observe_step(const noria_reducer* reducer, noria_step_info* info) {
  if (!is_usable(reducer)) return refuse(unusable(reducer, "reducer"));
  const auto step = reducer->reducer.last_step();
  if (!step.is_ok()) return refuse(step.failure());
  return answer(write_struct(info, step.value(), "noria_step_info"));
}

noria_status noria_observe_buckets(const noria_reducer* reducer, noria_bucket_info* out,
                                   uint32_t capacity, uint32_t* count) {
  return give_array(
      reducer, [](const Reducer& mine) { return mine.last_buckets(); }, out, capacity, count,
      "noria_bucket_info");
}
