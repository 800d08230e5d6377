// Devices and contexts.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>

#include "tests/support/cuda_standin/call.hpp"
#include "tests/support/cuda_standin/driver.hpp"
#include "tests/support/cuda_standin/driver_numbers.hpp"
#include "tests/support/cuda_standin/say.hpp"

using namespace noria::standin;

namespace {

bool is_device(int device) { return device >= 0 && device < kDevices; }

Context* known(const Machine& machine, void* handle) {
  const auto found =
      std::find_if(machine.contexts.begin(), machine.contexts.end(),
                   [handle](const auto& context) { return context.get() == handle; });
  return found == machine.contexts.end() || !(*found)->is_alive ? nullptr : found->get();
}

const std::map<int, std::pair<const char*, const char*>>& error_texts() {
  static const std::map<int, std::pair<const char*, const char*>> texts{
      {kSuccess, {"CUDA_SUCCESS", "no error"}},
      {kInvalidValue, {"CUDA_ERROR_INVALID_VALUE", "invalid argument"}},
      {kOutOfMemory, {"CUDA_ERROR_OUT_OF_MEMORY", "out of memory"}},
      {kNotInitialized, {"CUDA_ERROR_NOT_INITIALIZED", "initialization error"}},
      {kInvalidDevice, {"CUDA_ERROR_INVALID_DEVICE", "invalid device ordinal"}},
      {kInvalidImage, {"CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"}},
      {kInvalidContext, {"CUDA_ERROR_INVALID_CONTEXT", "invalid device context"}},
      {kInvalidHandle, {"CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"}},
      {kNotFound, {"CUDA_ERROR_NOT_FOUND", "named symbol not found"}},
      {kNotReady, {"CUDA_ERROR_NOT_READY", "device not ready"}},
      {kIllegalAddress, {"CUDA_ERROR_ILLEGAL_ADDRESS", "an illegal address was met"}},
      {kContextIsDestroyed, {"CUDA_ERROR_CONTEXT_IS_DESTROYED", "context is destroyed"}},
      {kMemoryAlreadyRegistered,
       {"CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "memory is registered already"}},
      {kMemoryNotRegistered, {"CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "memory not registered"}},
      {kLaunchFailed, {"CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"}},
      {kTimeout, {"CUDA_ERROR_TIMEOUT", "wait timed out"}},
  };
  return texts;
}

}  // namespace

int cuInit(unsigned flags) {
  Call call("cuInit", Needs::nothing);
  if (call.is_over()) return call.code();
  if (flags != 0) return kInvalidValue;
  call.machine().process = ::getpid();
  call.machine().start();
  return kSuccess;
}

int cuDriverGetVersion(int* version) {
  Call call("cuDriverGetVersion", Needs::nothing);
  if (call.is_over()) return call.code();
  *version = 12040;
  return kSuccess;
}

int cuGetErrorName(int code, const char** name) {
  const auto found = error_texts().find(code);
  *name = found == error_texts().end() ? nullptr : found->second.first;
  return *name == nullptr ? kInvalidValue : kSuccess;
}

int cuGetErrorString(int code, const char** text) {
  const auto found = error_texts().find(code);
  *text = found == error_texts().end() ? nullptr : found->second.second;
  return *text == nullptr ? kInvalidValue : kSuccess;
}

int cuDeviceGet(int* device, int ordinal) {
  Call call("cuDeviceGet", Needs::device);
  if (call.is_over()) return call.code();
  if (!is_device(ordinal)) return kInvalidDevice;
  *device = ordinal;
  return kSuccess;
}

int cuDeviceGetCount(int* count) {
  Call call("cuDeviceGetCount", Needs::device);
  if (call.is_over()) return call.code();
  *count = kDevices;
  return kSuccess;
}

int cuDeviceGetName(char* name, int length, int device) {
  Call call("cuDeviceGetName", Needs::device);
  if (call.is_over()) return call.code();
  if (!is_device(device) || length <= 0) return kInvalidValue;
  snprintf(name, static_cast<size_t>(length), "Stand-in GPU %d", device);
  return kSuccess;
}

int cuDeviceGetPCIBusId(char* id, int length, int device) {
  Call call("cuDeviceGetPCIBusId", Needs::device);
  if (call.is_over()) return call.code();
  if (!is_device(device) || length < 13) return kInvalidValue;
  snprintf(id, static_cast<size_t>(length), "0000:%02x:00.0", static_cast<unsigned>(device + 1));
  return kSuccess;
}

int cuDeviceGetAttribute(int* value, int attribute, int device) {
  Call call("cuDeviceGetAttribute", Needs::device);
  if (call.is_over()) return call.code();
  if (!is_device(device)) return kInvalidDevice;
  switch (attribute) {
    case kMultiprocessorCount: *value = 132; return kSuccess;
    case kComputeCapabilityMajor: *value = 9; return kSuccess;
    case kUnifiedAddressing:
    case kMemoryPoolsSupported:
    case kStreamPrioritiesSupported: *value = 1; return kSuccess;
    default: *value = 0; return kSuccess;
  }
}

int cuDevicePrimaryCtxRetain(void** context, int device) {
  Call call("cuDevicePrimaryCtxRetain", Needs::device);
  if (call.is_over()) return call.code();
  if (!is_device(device)) return kInvalidDevice;
  Context* const primary = call.machine().contexts[static_cast<size_t>(device)].get();
  ++primary->retained;
  primary->is_alive = true;
  *context = primary;
  return kSuccess;
}

int cuDevicePrimaryCtxRelease_v2(int device) {
  Call call("cuDevicePrimaryCtxRelease_v2", Needs::device);
  if (call.is_over()) return call.code();
  if (!is_device(device)) return kInvalidDevice;
  Context* const primary = call.machine().contexts[static_cast<size_t>(device)].get();
  if (primary->retained == 0) {
    call.machine().violation(
        say("device %d's primary context is released once more than retained", device));
    return kInvalidContext;
  }
  if (--primary->retained == 0) call.machine().end_context(primary);
  return kSuccess;
}

int cuDevicePrimaryCtxGetState(int device, unsigned* flags, int* active) {
  Call call("cuDevicePrimaryCtxGetState", Needs::device);
  if (call.is_over()) return call.code();
  if (!is_device(device)) return kInvalidDevice;
  *flags = 0;
  *active = call.machine().contexts[static_cast<size_t>(device)]->is_alive ? 1 : 0;
  return kSuccess;
}

int cuCtxCreate_v2(void** context, unsigned, int device) {
  Call call("cuCtxCreate_v2", Needs::device);
  if (call.is_over()) return call.code();
  if (!is_device(device)) return kInvalidDevice;
  auto made = std::make_unique<Context>();
  made->device = device;
  made->is_alive = true;
  *context = made.get();
  host_thread().contexts.push_back(made.get());
  call.machine().contexts.push_back(std::move(made));
  return kSuccess;
}

int cuCtxDestroy_v2(void* context) {
  Call call("cuCtxDestroy_v2", Needs::device);
  if (call.is_over()) return call.code();
  Context* const found = known(call.machine(), context);
  if (found == nullptr || found->is_primary) return kInvalidContext;
  if (call.machine().current() == found) host_thread().contexts.pop_back();
  call.machine().end_context(found);
  return kSuccess;
}

int cuCtxGetCurrent(void** context) {
  Call call("cuCtxGetCurrent", Needs::device);
  if (call.is_over()) return call.code();
  *context = call.machine().current();
  return kSuccess;
}

int cuCtxSetCurrent(void* context) {
  Call call("cuCtxSetCurrent", Needs::device);
  if (call.is_over()) return call.code();
  if (context != nullptr && known(call.machine(), context) == nullptr) return kInvalidContext;
  std::vector<Context*>& stack = host_thread().contexts;
  if (!stack.empty()) stack.pop_back();
  if (context != nullptr) stack.push_back(static_cast<Context*>(context));
  return kSuccess;
}

int cuCtxPushCurrent_v2(void* context) {
  Call call("cuCtxPushCurrent_v2", Needs::device);
  if (call.is_over()) return call.code();
  if (known(call.machine(), context) == nullptr) return kInvalidContext;
  host_thread().contexts.push_back(static_cast<Context*>(context));
  return kSuccess;
}

int cuCtxPopCurrent_v2(void** context) {
  Call call("cuCtxPopCurrent_v2", Needs::device);
  if (call.is_over()) return call.code();
  std::vector<Context*>& stack = host_thread().contexts;
  if (stack.empty()) return kInvalidContext;
  if (context != nullptr) *context = stack.back();
  stack.pop_back();
  return kSuccess;
}

int cuCtxGetDevice(int* device) {
  Call call("cuCtxGetDevice", Needs::context);
  if (call.is_over()) return call.code();
  *device = call.machine().current()->device;
  return kSuccess;
}

int cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  Call call("cuCtxGetStreamPriorityRange", Needs::context);
  if (call.is_over()) return call.code();
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = kGreatestPriority;
  return kSuccess;
}

int cuCtxSynchronize() {
  Call call("cuCtxSynchronize", Needs::context);
  if (call.is_over()) return call.code();
  Context* const context = call.machine().current();
  std::vector<OperationRef> last;
  for (const std::unique_ptr<Stream>& stream : call.machine().streams)
    if (stream->context == context && stream->last != nullptr) last.push_back(stream->last);
  for (const OperationRef& operation : last)
    if (!call.machine().wait(operation, call.lock())) return kTimeout;
  return context->sticky;
}
