#include "bucketing/cuda_stream.hpp"

#include <cstdio>
#include <string>

#include "bucketing/c_boundary.hpp"

namespace noria::bucketing {

std::string stream_name(cuda::Stream stream) {
  const auto number = reinterpret_cast<uintptr_t>(stream);
  if (number <= 1) return "CUDA's legacy default stream";
  char text[32];
  std::snprintf(text, sizeof text, "stream 0x%zx", static_cast<size_t>(number));
  return text;
}

Outcome<cuda::Context> CallerStreams::context_of(cuda::Stream handle) const {
  cuda::Context context = nullptr;
  if (!is_default(handle)) {
    // A thread that only gives gradients may have no context, without which the driver answers not.
    NORIA_TRY_ASSIGN(const CudaDevice::Current current, device_->make_current());
    NORIA_TRY(device_->api().call<&CudaSymbols::stream_get_context>(handle, &context));
    return context;
  }
  NORIA_TRY(device_->api().call<&CudaSymbols::context_get_current>(&context));
  // A thread without a context has no default stream either: it is to be the device's.
  return context != nullptr ? context : device_->context();
}

Outcome<cuda::Stream> CallerStreams::look_at(const noria_stream& stream) {
  if (stream.device != device_->ordinal())
    return Failure{NORIA_E_ARG, "noria_stream.device is " + std::to_string(stream.device) +
                                    ", and this communicator is of " + device_->name()};
  const auto handle = static_cast<cuda::Stream>(stream.handle);
  NORIA_TRY_ASSIGN(const cuda::Context context, context_of(handle));
  if (context != device_->context())
    return Failure{NORIA_E_ARG, std::string("noria_stream.handle ") +
                                    (is_default(handle) ? "is a default stream, and the thread's "
                                                          "current context is"
                                                        : "belongs to") +
                                    " another context than the primary one of " + device_->name() +
                                    ": use a stream of that, as the CUDA runtime makes them"};
  if (!is_default(handle))
    // relaxed: who does not see it yet asks the driver as well.
    seen_[next_.fetch_add(1, std::memory_order_relaxed) % seen_.size()].store(
        handle, std::memory_order_relaxed);
  return handle;
}

namespace {

Outcome<std::optional<cuda::Stream>> stream_of(const noria_stream& given, CallerStreams* streams) {
  if (given.kind == NORIA_STREAM_HOST) return std::optional<cuda::Stream>();
  if (given.kind != NORIA_STREAM_CUDA)
    return Failure{NORIA_E_ARG,
                   "noria_stream.kind is " + std::to_string(given.kind) + ": it takes 0 or 1"};
  if (streams == nullptr)
    return Failure{NORIA_E_UNSUPPORTED,
                   "noria_stream.kind is NORIA_STREAM_CUDA, and this communicator or reducer is of "
                   "the host: give NULL and memory of the host, or make it with device_kind "
                   "NORIA_STREAM_CUDA"};
  NORIA_TRY_ASSIGN(const cuda::Stream handle, streams->check(given));
  return std::optional<cuda::Stream>(handle);
}

}  // namespace

Outcome<std::optional<cuda::Stream>> read_stream(const noria_stream* stream,
                                                 CallerStreams* streams) {
  if (stream == nullptr) return std::optional<cuda::Stream>();
  // Each gradient comes by here: where it is this header's struct nothing needs to be copied.
  if (stream->struct_size == sizeof *stream) [[likely]]
    return stream_of(*stream, streams);
  NORIA_TRY_ASSIGN(const noria_stream copy, read_struct(stream, "noria_stream"));
  return stream_of(copy, streams);
}

}  // namespace noria::bucketing
