// NCCL's communicators.
#include <algorithm>
#include <climits>
#include <cstring>

#include "tests/support/cuda_standin/call.hpp"
#include "tests/support/cuda_standin/communicator.hpp"
#include "tests/support/cuda_standin/nccl.hpp"
#include "tests/support/cuda_standin/nccl_state.hpp"
#include "tests/support/cuda_standin/say.hpp"

using namespace noria::standin;

namespace {

constexpr char kIdMark[] = "noria stand-in";

struct Id {
  char mark[sizeof kIdMark];
  WorldId world;
};

// Checks what can be checked at once; null: `code` says why not.
CommunicatorRef begin(Call* call, int ranks, const UniqueId& id, int rank, int* code) {
  Machine& machine = call->machine();
  Id given;
  memcpy(&given, id.bytes, sizeof given);
  *code = kNcclInvalidArgument;
  if (ranks < 1 || rank < 0 || rank >= ranks || memcmp(given.mark, kIdMark, sizeof kIdMark) != 0)
    return nullptr;
  Context* const context = machine.current();
  if (context == nullptr || !context->is_primary) {
    machine.violation("ncclCommInitRank without a device's primary context as the current one");
    *code = kNcclUnhandledCudaError;
    return nullptr;
  }
  return join(given.world, static_cast<size_t>(ranks), static_cast<size_t>(rank), context, code);
}

int init(const char* name, void** comm, int ranks, const UniqueId& id, int rank, bool is_blocking) {
  Call call(name, Needs::nothing);
  if (call.is_over()) return call.code();
  *comm = nullptr;
  int code = 0;
  const CommunicatorRef made = begin(&call, ranks, id, rank, &code);
  if (made == nullptr) return code;
  made->is_blocking = is_blocking;
  *comm = made.get();
  if (!is_blocking) return kNcclInProgress;
  if (nccl_thread().group_depth > 0) {
    nccl_thread().initialising.push_back(made);
    return kNcclSuccess;
  }
  return wait_formed(&call, made);
}

// What one that does not block began has come to its end.
void expect_settled(const Call& call, const char* name, const Communicator& communicator) {
  if (!communicator.is_formed() || !communicator.begun.empty())
    call.machine().violation(
        say("%s while rank %zu's communicator is in progress", name, communicator.rank));
}

bool is_at_work_in(const Communicator& communicator, const Access& memory) {
  const auto is_in = [&](uint64_t address) {
    return address >= memory.first && address < memory.first + memory.bytes;
  };
  return std::any_of(communicator.launched.begin(), communicator.launched.end(),
                     [&](const OperationRef& launched) {
                       const auto& parts = launched->collective->parts;
                       return !launched->is_done && std::any_of(parts.begin(), parts.end(),
                                                                [&](const CollectivePart& part) {
                                                                  return is_in(part.in) ||
                                                                         is_in(part.out);
                                                                });
                     });
}

}  // namespace

namespace noria::standin {

NcclThread& nccl_thread() {
  static thread_local NcclThread thread;
  return thread;
}

std::atomic<int>& nccl_version() {
  static std::atomic<int> version{kNcclVersion};
  return version;
}

CommunicatorRef find_communicator(const Call& call, const char* name, void* handle) {
  const auto found = communicators().find(handle);
  if (found != communicators().end()) return found->second;
  call.machine().violation(say("%s with %p, which is no communicator", name, handle));
  return nullptr;
}

int wait_formed(Call* call, const CommunicatorRef& communicator) {
  const bool is_over = call->machine().changed.wait_for(
      *call->lock(), std::chrono::minutes(1),
      [&] { return communicator->is_formed() || communicator->async_error != 0; });
  return is_over ? communicator->async_error : kNcclSystemError;
}

int state_of(Communicator* communicator) {
  if (communicator->async_error != 0) return communicator->async_error;
  if (!communicator->is_formed()) return kNcclInProgress;
  if (communicator->polls_left > 0) {
    --communicator->polls_left;
    return kNcclInProgress;
  }
  for (const std::function<void()>& begin : communicator->begun) begin();
  communicator->begun.clear();
  return kNcclSuccess;
}

}  // namespace noria::standin

int ncclGetVersion(int* version) {
  Call call("ncclGetVersion", Needs::nothing);
  if (call.is_over()) return call.code();
  *version = nccl_version().load();
  return kNcclSuccess;
}

const char* ncclGetErrorString(int result) {
  switch (result) {
    case kNcclSuccess: return "no error";
    case kNcclUnhandledCudaError: return "unhandled cuda error";
    case kNcclSystemError: return "unhandled system error";
    case kNcclInternalError: return "internal error";
    case kNcclInvalidArgument: return "invalid argument";
    case kNcclInvalidUsage: return "invalid usage";
    case kNcclRemoteError: return "remote process exited or there was a network error";
    case kNcclInProgress: return "NCCL operation in progress";
    default: return "unknown result code";
  }
}

const char* ncclGetLastError(void* comm) {
  const std::lock_guard lock(Machine::instance().mutex);
  static thread_local std::string text;
  const auto found = communicators().find(comm);
  text = found == communicators().end() ? "" : found->second->last_error;
  return text.c_str();
}

int ncclGetUniqueId(UniqueId* id) {
  Call call("ncclGetUniqueId", Needs::nothing);
  if (call.is_over()) return call.code();
  static uint64_t last = 0;
  Id made{.mark = {}, .world = {Exchange::instance().address(), ++last}};
  if (made.world.address == 0) return kNcclSystemError;
  memcpy(made.mark, kIdMark, sizeof kIdMark);
  memset(id, 0, sizeof *id);
  memcpy(id->bytes, &made, sizeof made);
  return kNcclSuccess;
}

int ncclCommInitRank(void** comm, int ranks, UniqueId id, int rank) {
  return init("ncclCommInitRank", comm, ranks, id, rank, true);
}

int ncclCommInitRankConfig(void** comm, int ranks, UniqueId id, int rank, NcclConfig* config) {
  if (config != nullptr && config->magic != 0xcafebeef) return kNcclInvalidArgument;
  return init("ncclCommInitRankConfig", comm, ranks, id, rank,
              config == nullptr || config->blocking != 0);
}

int ncclCommFinalize(void* comm) {
  Call call("ncclCommFinalize", Needs::nothing);
  if (call.is_over()) return call.code();
  const CommunicatorRef found = find_communicator(call, "ncclCommFinalize", comm);
  if (found == nullptr) return kNcclInvalidArgument;
  return wait_idle(call.machine(), found, call.lock()) ? kNcclSuccess : kNcclInternalError;
}

int ncclCommDestroy(void* comm) {
  Call call("ncclCommDestroy", Needs::nothing);
  if (call.is_over()) return call.code();
  const CommunicatorRef found = find_communicator(call, "ncclCommDestroy", comm);
  if (found == nullptr) return kNcclInvalidArgument;
  if (!found->registered.empty())
    call.machine().violation("ncclCommDestroy while memory is registered");
  const bool is_idle = wait_idle(call.machine(), found, call.lock());
  communicators().erase(comm);
  leave(found, call.lock());
  return is_idle ? kNcclSuccess : kNcclInternalError;
}

int ncclCommAbort(void* comm) {
  Call call("ncclCommAbort", Needs::nothing);
  if (call.is_over()) return call.code();
  const CommunicatorRef found = find_communicator(call, "ncclCommAbort", comm);
  if (found == nullptr) return kNcclInvalidArgument;
  abort_launches(call.machine(), *found);
  communicators().erase(comm);
  leave(found, call.lock());
  return kNcclSuccess;
}

int ncclCommGetAsyncError(void* comm, int* error) {
  Call call("ncclCommGetAsyncError", Needs::nothing);
  if (call.is_over()) {
    // Who began it is told of a failure, and asks no more.
    const auto told = communicators().find(comm);
    if (told != communicators().end() && told->second->begun_by == std::this_thread::get_id())
      told->second->begun_by = {};
    return call.code();
  }
  const CommunicatorRef found = find_communicator(call, "ncclCommGetAsyncError", comm);
  if (found == nullptr) return kNcclInvalidArgument;
  // NCCL ends what it began when it is asked, which two threads must not do at once.
  if (!found->begun.empty() && found->begun_by != std::thread::id() &&
      found->begun_by != std::this_thread::get_id())
    call.machine().violation(
        say("ncclCommGetAsyncError of rank %zu while another thread's operation is in progress",
            found->rank));
  *error = state_of(found.get());
  return kNcclSuccess;
}

int ncclCommCount(void* comm, int* count) {
  Call call("ncclCommCount", Needs::nothing);
  if (call.is_over()) return call.code();
  const CommunicatorRef found = find_communicator(call, "ncclCommCount", comm);
  if (found == nullptr) return kNcclInvalidArgument;
  *count = static_cast<int>(found->world->members.size());
  return kNcclSuccess;
}

int ncclCommUserRank(void* comm, int* rank) {
  Call call("ncclCommUserRank", Needs::nothing);
  if (call.is_over()) return call.code();
  const CommunicatorRef found = find_communicator(call, "ncclCommUserRank", comm);
  if (found == nullptr) return kNcclInvalidArgument;
  *rank = static_cast<int>(found->rank);
  return kNcclSuccess;
}

int ncclCommCuDevice(void* comm, int* device) {
  Call call("ncclCommCuDevice", Needs::nothing);
  if (call.is_over()) return call.code();
  const CommunicatorRef found = find_communicator(call, "ncclCommCuDevice", comm);
  if (found == nullptr) return kNcclInvalidArgument;
  *device = found->context->device;
  return kNcclSuccess;
}

int ncclCommRegister(void* comm, void* memory, size_t bytes, void** handle) {
  Call call("ncclCommRegister", Needs::nothing);
  if (call.is_over()) return call.code();
  const CommunicatorRef found = find_communicator(call, "ncclCommRegister", comm);
  if (found == nullptr) return kNcclInvalidArgument;
  expect_settled(call, "ncclCommRegister", *found);
  const auto first = reinterpret_cast<uint64_t>(memory);
  const Allocation* const of = call.machine().memory.find(first);
  if (of == nullptr || of->is_freed || first + bytes > of->first + of->bytes)
    return kNcclInvalidArgument;
  *handle = memory;
  found->registered[memory] = {first, bytes, true, 0};
  return kNcclSuccess;
}

int ncclCommDeregister(void* comm, void* handle) {
  Call call("ncclCommDeregister", Needs::nothing);
  if (call.is_over()) return call.code();
  const CommunicatorRef found = find_communicator(call, "ncclCommDeregister", comm);
  if (found == nullptr) return kNcclInvalidArgument;
  expect_settled(call, "ncclCommDeregister", *found);
  const auto registered = found->registered.find(handle);
  if (registered == found->registered.end()) return kNcclInvalidArgument;
  if (is_at_work_in(*found, registered->second))
    call.machine().violation(
        say("ncclCommDeregister of memory that rank %zu still works in", found->rank));
  found->registered.erase(registered);
  return kNcclSuccess;
}
