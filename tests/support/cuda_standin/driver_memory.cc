// Memory, and copies.
#include <cstring>
#include <memory>

#include "tests/support/cuda_standin/call.hpp"
#include "tests/support/cuda_standin/communicator.hpp"
#include "tests/support/cuda_standin/driver.hpp"
#include "tests/support/cuda_standin/driver_numbers.hpp"
#include "tests/support/cuda_standin/say.hpp"

using namespace noria::standin;

namespace {

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

Allocation* alive(Machine& machine, uint64_t address) {
  Allocation* const found = machine.memory.find(address);
  return found == nullptr || found->is_freed ? nullptr : found;
}

bool is_device(Machine& machine, uint64_t address) {
  // What was freed is still a device's: its operation says so when it runs.
  const Allocation* const found = machine.memory.find(address);
  return found != nullptr && found->kind == MemoryKind::device;
}

int wrong_stream(const Call& call, const char* name, const void* stream) {
  call.machine().violation(say("%s on %p, which is no stream", name, stream));
  return kInvalidHandle;
}

struct Copy {
  uint64_t to;
  uint64_t from;
  size_t bytes;
};

// Host memory that the driver does not know is read before the call returns, and written before it
// returns as well.
int copy(Call* call, const char* name, const Copy& of, Stream* stream) {
  if (of.bytes == 0) return kSuccess;
  Machine& machine = call->machine();
  std::shared_ptr<std::vector<std::byte>> staged;
  if (machine.memory.find(of.from) == nullptr) {
    const auto* const source = reinterpret_cast<const std::byte*>(of.from);
    staged = std::make_shared<std::vector<std::byte>>(source, source + of.bytes);
  }
  const bool is_to_pageable = machine.memory.find(of.to) == nullptr;
  const auto touches = [of, is_staged = staged != nullptr, is_to_pageable] {
    std::vector<Access> accesses;
    if (!is_staged) accesses.push_back({of.from, of.bytes, false, 0});
    if (!is_to_pageable) accesses.push_back({of.to, of.bytes, true, 0});
    return accesses;
  };
  const auto act = [of, staged] {
    memmove(Memory::backing(of.to), staged ? staged->data() : Memory::backing(of.from), of.bytes);
  };
  const OperationRef operation = machine.enqueue(stream, name, touches, act);
  if (!is_to_pageable) return kSuccess;
  return machine.wait(operation, call->lock()) ? stream->context->sticky : kTimeout;
}

int copy_call(const char* name, const Copy& of, bool to_device, bool from_device, void* handle) {
  Call call(name, Needs::context);
  if (call.is_over()) return call.code();
  Stream* const stream = call.machine().stream(handle);
  if (stream == nullptr) return wrong_stream(call, name, handle);
  if (of.bytes > 0 && (is_device(call.machine(), of.to) != to_device ||
                       is_device(call.machine(), of.from) != from_device))
    return kInvalidValue;
  return copy(&call, name, of, stream);
}

int fill_call(const char* name, uint64_t to, size_t bytes, uint32_t word, void* handle) {
  Call call(name, Needs::context);
  if (call.is_over()) return call.code();
  Stream* const stream = call.machine().stream(handle);
  if (stream == nullptr) return wrong_stream(call, name, handle);
  if (bytes == 0) return kSuccess;
  if (!is_device(call.machine(), to)) return kInvalidValue;
  call.machine().enqueue(
      stream, name,
      [to, bytes] {
        return std::vector<Access>{{to, bytes, true, 0}};
      },
      [to, bytes, word] {
        auto* const at = static_cast<std::byte*>(Memory::backing(to));
        for (size_t i = 0; i < bytes; ++i)
          at[i] = static_cast<std::byte>(word >> (8 * (i % sizeof word)));
      });
  return kSuccess;
}

int free_call(Call* call, const char* name, uint64_t address, MemoryKind kind,
              bool is_registered_by_user) {
  Allocation* const found = alive(call->machine(), address);
  if (found == nullptr || found->first != address || found->kind != kind ||
      found->is_registered_by_user != is_registered_by_user) {
    call->machine().violation(
        say("%s of 0x%llx, which is nobody's", name, static_cast<unsigned long long>(address)));
    return kInvalidValue;
  }
  for (const auto& [handle, communicator] : communicators())
    for (const auto& [start, range] : communicator->registered)
      if (range.first >= found->first && range.first < found->first + found->bytes)
        call->machine().violation(
            say("%s of memory that rank %zu has registered", name, communicator->rank));
  // What is freed must be nobody's any more, and the host must have seen that.
  call->machine().host_touch(name, {found->first, found->bytes, true, 0});
  call->machine().checker.forget(found->first, found->bytes);
  call->machine().memory.free(found);
  return kSuccess;
}

int pointer_attribute(const Allocation& of, uint64_t address, int attribute, void* value) {
  const bool is_device = of.kind == MemoryKind::device;
  switch (attribute) {
    case kPointerContext: *static_cast<void**>(value) = of.context; return kSuccess;
    case kPointerMemoryType:
      *static_cast<unsigned*>(value) = is_device ? kMemoryTypeDevice : kMemoryTypeHost;
      return kSuccess;
    case kPointerDevicePointer: *static_cast<uint64_t*>(value) = address; return kSuccess;
    case kPointerHostPointer:
      if (is_device) return kInvalidValue;
      *static_cast<uint64_t*>(value) = address;
      return kSuccess;
    case kPointerIsManaged: *static_cast<unsigned*>(value) = 0; return kSuccess;
    case kPointerDeviceOrdinal: *static_cast<int*>(value) = of.context->device; return kSuccess;
    case kPointerRangeStart: *static_cast<uint64_t*>(value) = of.first; return kSuccess;
    case kPointerRangeSize: *static_cast<size_t*>(value) = of.bytes; return kSuccess;
    default: return kInvalidValue;
  }
}

// As CUDA's for memory that it does not know: nothing, and an ordinal of -2.
void no_attribute(int attribute, void* value) {
  switch (attribute) {
    case kPointerMemoryType:
    case kPointerIsManaged: *static_cast<unsigned*>(value) = 0; return;
    case kPointerDeviceOrdinal: *static_cast<int*>(value) = -2; return;
    default: *static_cast<uint64_t*>(value) = 0; return;
  }
}

}  // namespace

int cuMemAlloc_v2(uint64_t* address, size_t bytes) {
  Call call("cuMemAlloc_v2", Needs::context);
  if (call.is_over()) return call.code();
  if (bytes == 0) return kInvalidValue;
  *address = call.machine().memory.allocate(bytes, call.machine().current());
  return *address == 0 ? kOutOfMemory : kSuccess;
}

// Who uses it comes behind the stream: it counts as written there.
int cuMemAllocAsync(uint64_t* address, size_t bytes, void* handle) {
  Call call("cuMemAllocAsync", Needs::context);
  if (call.is_over()) return call.code();
  Stream* const stream = call.machine().stream(handle);
  if (stream == nullptr) return wrong_stream(call, "cuMemAllocAsync", handle);
  if (bytes == 0) return kInvalidValue;
  const uint64_t made = call.machine().memory.allocate(bytes, call.machine().current());
  if (made == 0) return kOutOfMemory;
  call.machine().enqueue(
      stream, "cuMemAllocAsync",
      [made, bytes] {
        return std::vector<Access>{{made, bytes, true, 0}};
      },
      [] {});
  *address = made;
  return kSuccess;
}

int cuMemFree_v2(uint64_t address) {
  Call call("cuMemFree_v2", Needs::context);
  if (call.is_over()) return call.code();
  if (address == 0) return kSuccess;
  return free_call(&call, "cuMemFree", address, MemoryKind::device, false);
}

int cuMemHostAlloc(void** address, size_t bytes, unsigned) {
  return cuMemAllocHost_v2(address, bytes);
}

int cuMemAllocHost_v2(void** address, size_t bytes) {
  Call call("cuMemAllocHost_v2", Needs::context);
  if (call.is_over()) return call.code();
  if (bytes == 0) return kInvalidValue;
  *address = call.machine().memory.allocate_pinned(bytes, call.machine().current());
  return *address == nullptr ? kOutOfMemory : kSuccess;
}

int cuMemFreeHost(void* address) {
  Call call("cuMemFreeHost", Needs::context);
  if (call.is_over()) return call.code();
  if (address == nullptr) return kSuccess;
  return free_call(&call, "cuMemFreeHost", address_of(address), MemoryKind::pinned, false);
}

int cuMemHostRegister_v2(void* address, size_t bytes, unsigned) {
  Call call("cuMemHostRegister_v2", Needs::context);
  if (call.is_over()) return call.code();
  if (address == nullptr || bytes == 0) return kInvalidValue;
  if (alive(call.machine(), address_of(address)) != nullptr) return kMemoryAlreadyRegistered;
  call.machine().memory.add_pinned(address, bytes, call.machine().current());
  return kSuccess;
}

int cuMemHostUnregister(void* address) {
  Call call("cuMemHostUnregister", Needs::context);
  if (call.is_over()) return call.code();
  if (alive(call.machine(), address_of(address)) == nullptr) return kMemoryNotRegistered;
  return free_call(&call, "cuMemHostUnregister", address_of(address), MemoryKind::pinned, true);
}

int cuMemGetInfo_v2(size_t* free, size_t* total) {
  Call call("cuMemGetInfo_v2", Needs::context);
  if (call.is_over()) return call.code();
  *free = size_t{32} << 30U;
  *total = size_t{64} << 30U;
  return kSuccess;
}

int cuMemcpyHtoDAsync_v2(uint64_t to, const void* from, size_t bytes, void* stream) {
  return copy_call("cuMemcpyHtoDAsync_v2", {to, address_of(from), bytes}, true, false, stream);
}

int cuMemcpyDtoHAsync_v2(void* to, uint64_t from, size_t bytes, void* stream) {
  return copy_call("cuMemcpyDtoHAsync_v2", {address_of(to), from, bytes}, false, true, stream);
}

int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  return copy_call("cuMemcpyDtoDAsync_v2", {to, from, bytes}, true, true, stream);
}

int cuMemcpyAsync(uint64_t to, uint64_t from, size_t bytes, void* stream) {
  Call call("cuMemcpyAsync", Needs::context);
  if (call.is_over()) return call.code();
  Stream* const of = call.machine().stream(stream);
  if (of == nullptr) return wrong_stream(call, "cuMemcpyAsync", stream);
  return copy(&call, "cuMemcpyAsync", {to, from, bytes}, of);
}

// The host waits for the copy as for any other work of the legacy stream; from device to device it
// does not.
int cuMemcpyHtoD_v2(uint64_t to, const void* from, size_t bytes) {
  const int code =
      copy_call("cuMemcpyHtoD_v2", {to, address_of(from), bytes}, true, false, nullptr);
  return code != 0 ? code : cuStreamSynchronize(nullptr);
}

int cuMemcpyDtoH_v2(void* to, uint64_t from, size_t bytes) {
  const int code =
      copy_call("cuMemcpyDtoH_v2", {address_of(to), from, bytes}, false, true, nullptr);
  return code != 0 ? code : cuStreamSynchronize(nullptr);
}

int cuMemcpyDtoD_v2(uint64_t to, uint64_t from, size_t bytes) {
  return copy_call("cuMemcpyDtoD_v2", {to, from, bytes}, true, true, nullptr);
}

int cuMemsetD8Async(uint64_t to, unsigned char value, size_t count, void* stream) {
  return fill_call("cuMemsetD8Async", to, count, value * 0x01010101U, stream);
}

int cuMemsetD32Async(uint64_t to, unsigned value, size_t count, void* stream) {
  return fill_call("cuMemsetD32Async", to, count * sizeof value, value, stream);
}

int cuPointerGetAttribute(void* value, int attribute, uint64_t address) {
  Call call("cuPointerGetAttribute", Needs::device);
  if (call.is_over()) return call.code();
  const Allocation* const found = alive(call.machine(), address);
  return found == nullptr ? kInvalidValue : pointer_attribute(*found, address, attribute, value);
}

int cuPointerGetAttributes(unsigned count, int* attributes, void** values, uint64_t address) {
  Call call("cuPointerGetAttributes", Needs::device);
  if (call.is_over()) return call.code();
  const Allocation* const found = alive(call.machine(), address);
  for (unsigned i = 0; i < count; ++i)
    if (found == nullptr || pointer_attribute(*found, address, attributes[i], values[i]) != 0)
      no_attribute(attributes[i], values[i]);
  return kSuccess;
}
