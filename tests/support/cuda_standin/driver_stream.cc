// Streams and events.
#include "tests/support/cuda_standin/call.hpp"
#include "tests/support/cuda_standin/driver.hpp"
#include "tests/support/cuda_standin/driver_numbers.hpp"
#include "tests/support/cuda_standin/say.hpp"

using namespace noria::standin;

namespace {

// A handle that was never given out, or was destroyed: on a device anything may happen then.
int wrong_handle(const Call& call, const char* name, const char* kind, const void* handle) {
  call.machine().violation(say("%s with %p, which is no %s", name, handle, kind));
  return kInvalidHandle;
}

// What a wait or a query found, or what has befallen the device since.
int outcome(const Context& context, bool is_over, int otherwise) {
  return context.sticky != 0 ? context.sticky : is_over ? kSuccess : otherwise;
}

}  // namespace

int cuStreamCreate(void** stream, unsigned flags) {
  return cuStreamCreateWithPriority(stream, flags, 0);
}

int cuStreamCreateWithPriority(void** stream, unsigned flags, int priority) {
  Call call("cuStreamCreateWithPriority", Needs::context);
  if (call.is_over()) return call.code();
  if (flags > kStreamNonBlocking) return kInvalidValue;
  *stream =
      call.machine().add_stream(call.machine().current(), flags != kStreamNonBlocking, priority);
  return kSuccess;
}

int cuStreamDestroy_v2(void* stream) {
  Call call("cuStreamDestroy_v2", Needs::context);
  if (call.is_over()) return call.code();
  if (reinterpret_cast<uint64_t>(stream) <= 2 || call.machine().stream(stream) == nullptr)
    return wrong_handle(call, "cuStreamDestroy", "stream", stream);
  call.machine().destroy_stream(stream);
  return kSuccess;
}

int cuStreamGetCtx(void* stream, void** context) {
  Call call("cuStreamGetCtx", Needs::context);
  if (call.is_over()) return call.code();
  const Stream* const found = call.machine().stream(stream);
  if (found == nullptr) return kInvalidHandle;  // what a caller's mistake is refused by
  *context = found->context;
  return kSuccess;
}

int cuStreamGetPriority(void* stream, int* priority) {
  Call call("cuStreamGetPriority", Needs::context);
  if (call.is_over()) return call.code();
  const Stream* const found = call.machine().stream(stream);
  if (found == nullptr) return kInvalidHandle;
  *priority = found->priority;
  return kSuccess;
}

int cuStreamGetFlags(void* stream, unsigned* flags) {
  Call call("cuStreamGetFlags", Needs::context);
  if (call.is_over()) return call.code();
  const Stream* const found = call.machine().stream(stream);
  if (found == nullptr) return kInvalidHandle;
  *flags = found->is_blocking ? 0 : kStreamNonBlocking;
  return kSuccess;
}

int cuStreamIsCapturing(void* stream, int* status) {
  Call call("cuStreamIsCapturing", Needs::context);
  if (call.is_over()) return call.code();
  if (call.machine().stream(stream) == nullptr) return kInvalidHandle;
  *status = 0;
  return kSuccess;
}

int cuStreamWaitEvent(void* stream, void* event, unsigned flags) {
  Call call("cuStreamWaitEvent", Needs::context);
  if (call.is_over()) return call.code();
  if (flags != 0) return kInvalidValue;
  Machine& machine = call.machine();
  Stream* const waits = machine.stream(stream);
  if (waits == nullptr) return wrong_handle(call, "cuStreamWaitEvent", "stream", stream);
  const Event* const found = machine.event(event);
  if (found == nullptr) return wrong_handle(call, "cuStreamWaitEvent", "event", event);
  // As CUDA's: there is nothing to wait for.
  if (found->record == nullptr || waits->drops_waits) return kSuccess;
  const OperationRef record = found->record;
  machine.enqueue(waits, "wait")->after.push_back(record);
  return kSuccess;
}

int cuStreamQuery(void* stream) {
  Call call("cuStreamQuery", Needs::context);
  if (call.is_over()) return call.code();
  const Stream* const found = call.machine().stream(stream);
  if (found == nullptr) return wrong_handle(call, "cuStreamQuery", "stream", stream);
  return outcome(*found->context, call.machine().query(found->last), kNotReady);
}

int cuStreamSynchronize(void* stream) {
  Call call("cuStreamSynchronize", Needs::context);
  if (call.is_over()) return call.code();
  const Stream* const found = call.machine().stream(stream);
  if (found == nullptr) return wrong_handle(call, "cuStreamSynchronize", "stream", stream);
  Context* const context = found->context;
  const OperationRef last = found->last;
  const bool is_over = call.machine().wait(last, call.lock());
  return outcome(*context, is_over, kTimeout);
}

int cuEventCreate(void** event, unsigned flags) {
  Call call("cuEventCreate", Needs::context);
  if (call.is_over()) return call.code();
  *event = call.machine().add_event(call.machine().current(), (flags & kEventDisableTiming) == 0);
  return kSuccess;
}

int cuEventDestroy_v2(void* event) {
  Call call("cuEventDestroy_v2", Needs::context);
  if (call.is_over()) return call.code();
  if (call.machine().event(event) == nullptr)
    return wrong_handle(call, "cuEventDestroy", "event", event);
  call.machine().destroy_event(event);
  return kSuccess;
}

int cuEventRecord(void* event, void* stream) {
  Call call("cuEventRecord", Needs::context);
  if (call.is_over()) return call.code();
  Event* const found = call.machine().event(event);
  if (found == nullptr) return wrong_handle(call, "cuEventRecord", "event", event);
  Stream* const of = call.machine().stream(stream);
  if (of == nullptr) return wrong_handle(call, "cuEventRecord", "stream", stream);
  if (of->context != found->context) {
    call.machine().violation(say("an event of device %d's context is recorded in %s",
                                 found->context->device, of->name.c_str()));
    return kInvalidHandle;
  }
  if (!of->drops_records) found->record = call.machine().enqueue(of, "record");
  return kSuccess;
}

int cuEventQuery(void* event) {
  Call call("cuEventQuery", Needs::context);
  if (call.is_over()) return call.code();
  const Event* const found = call.machine().event(event);
  if (found == nullptr) return wrong_handle(call, "cuEventQuery", "event", event);
  return outcome(*found->context, call.machine().query(found->record), kNotReady);
}

int cuEventSynchronize(void* event) {
  Call call("cuEventSynchronize", Needs::context);
  if (call.is_over()) return call.code();
  const Event* const found = call.machine().event(event);
  if (found == nullptr) return wrong_handle(call, "cuEventSynchronize", "event", event);
  Context* const context = found->context;
  const OperationRef record = found->record;
  const bool is_over = call.machine().wait(record, call.lock());
  return outcome(*context, is_over, kTimeout);
}

int cuEventElapsedTime(float* milliseconds, void* start, void* end) {
  Call call("cuEventElapsedTime", Needs::context);
  if (call.is_over()) return call.code();
  const Event* const from = call.machine().event(start);
  const Event* const to = call.machine().event(end);
  if (from == nullptr) return wrong_handle(call, "cuEventElapsedTime", "event", start);
  if (to == nullptr) return wrong_handle(call, "cuEventElapsedTime", "event", end);
  if (!from->is_timed || !to->is_timed || from->record == nullptr || to->record == nullptr)
    return kInvalidHandle;
  if (!from->record->is_done || !to->record->is_done) return kNotReady;
  *milliseconds =
      std::chrono::duration<float, std::milli>(to->record->ended - from->record->ended).count();
  return kSuccess;
}

int cuEventElapsedTime_v2(float* milliseconds, void* start, void* end) {
  return cuEventElapsedTime(milliseconds, start, end);
}
