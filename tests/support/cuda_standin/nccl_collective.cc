// NCCL's collectives, and groups of them.
#include <algorithm>

#include "tests/support/cuda_standin/arithmetic.hpp"
#include "tests/support/cuda_standin/nccl.hpp"
#include "tests/support/cuda_standin/nccl_state.hpp"
#include "tests/support/cuda_standin/say.hpp"

using namespace noria::standin;

namespace {

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

const char* name_of(CollectiveKind kind) {
  switch (kind) {
    case CollectiveKind::all_reduce: return "ncclAllReduce";
    case CollectiveKind::reduce_scatter: return "ncclReduceScatter";
    case CollectiveKind::all_gather: return "ncclAllGather";
    case CollectiveKind::broadcast: return "ncclBroadcast";
    case CollectiveKind::reduce: return "ncclReduce";
  }
  return "";
}

void launch(const CommunicatorRef& communicator, Stream* stream,
            const std::vector<CollectivePart>& parts) {
  auto operation = std::make_shared<Operation>();
  operation->name = std::make_shared<std::string>(
      say("%s, collective %llu of rank %zu", name_of(parts[0].kind),
          static_cast<unsigned long long>(parts[0].sequence), communicator->rank));
  operation->collective = std::make_shared<CollectiveLaunch>();
  operation->collective->communicator = communicator;
  operation->collective->parts = parts;
  std::erase_if(communicator->launched, [](const OperationRef& old) { return old->is_done; });
  communicator->launched.push_back(operation);
  Machine::instance().enqueue(stream, std::move(operation));
}

// At once, or, of a communicator that does not block, maybe when it is asked for the second or
// third time: what is recorded before that does not cover it.
int begin(const CommunicatorRef& communicator, Stream* stream, std::vector<CollectivePart> parts) {
  for (CollectivePart& part : parts) part.sequence = communicator->sequence++;
  Machine& machine = Machine::instance();
  if (communicator->is_blocking || machine.random() % 2 == 0) {
    launch(communicator, stream, parts);
    return kNcclSuccess;
  }
  communicator->polls_left = static_cast<int>(machine.random() % 3);
  communicator->begun_by = std::this_thread::get_id();
  Communicator* const at = communicator.get();
  communicator->begun.push_back(
      [at, stream, parts] { launch(communicators().at(at), stream, parts); });
  return kNcclInProgress;
}

// 0: it may begin.
int refuse(const Call& call, const CommunicatorRef& communicator, const Stream* stream,
           const CollectivePart& part) {
  Machine& machine = call.machine();
  const char* const name = name_of(part.kind);
  if (communicator->async_error != 0) return communicator->async_error;
  if (!communicator->is_formed() || !communicator->begun.empty()) {
    machine.violation(
        say("%s while rank %zu's communicator is in progress", name, communicator->rank));
    return kNcclInvalidUsage;
  }
  if (!is_op(part.op, part.dtype) || part.root < 0 ||
      static_cast<size_t>(part.root) >= communicator->world->members.size())
    return kNcclInvalidArgument;
  if (stream == nullptr || stream->context != communicator->context) {
    machine.violation(say("%s on %s by a communicator of device %d", name,
                          stream == nullptr ? "no stream" : stream->name.c_str(),
                          communicator->context->device));
    return kNcclUnhandledCudaError;
  }
  return communicator->context->sticky != 0 ? kNcclUnhandledCudaError : kNcclSuccess;
}

int collective(const CollectivePart& part, void* comm, void* stream) {
  const char* const name = name_of(part.kind);
  Call call(name, Needs::nothing);
  if (call.is_over()) return call.code();
  const CommunicatorRef found = find_communicator(call, name, comm);
  if (found == nullptr) return kNcclInvalidArgument;
  Stream* const on = call.machine().stream(stream);
  const int refused = refuse(call, found, on, part);
  if (refused != 0 || part.count == 0) return refused;
  if (nccl_thread().group_depth > 0) {
    nccl_thread().parts.push_back({found, on, part});
    return kNcclSuccess;
  }
  return begin(found, on, {part});
}

}  // namespace

int ncclAllReduce(const void* in, void* out, size_t count, int dtype, int op, void* comm,
                  void* stream) {
  return collective(
      {.in = address_of(in), .out = address_of(out), .count = count, .dtype = dtype, .op = op},
      comm, stream);
}

int ncclReduce(const void* in, void* out, size_t count, int dtype, int op, int root, void* comm,
               void* stream) {
  return collective({.kind = CollectiveKind::reduce,
                     .in = address_of(in),
                     .out = address_of(out),
                     .count = count,
                     .dtype = dtype,
                     .op = op,
                     .root = root},
                    comm, stream);
}

int ncclReduceScatter(const void* in, void* out, size_t count, int dtype, int op, void* comm,
                      void* stream) {
  return collective({.kind = CollectiveKind::reduce_scatter,
                     .in = address_of(in),
                     .out = address_of(out),
                     .count = count,
                     .dtype = dtype,
                     .op = op},
                    comm, stream);
}

int ncclAllGather(const void* in, void* out, size_t count, int dtype, void* comm, void* stream) {
  return collective({.kind = CollectiveKind::all_gather,
                     .in = address_of(in),
                     .out = address_of(out),
                     .count = count,
                     .dtype = dtype},
                    comm, stream);
}

int ncclBroadcast(const void* in, void* out, size_t count, int dtype, int root, void* comm,
                  void* stream) {
  return collective({.kind = CollectiveKind::broadcast,
                     .in = address_of(in),
                     .out = address_of(out),
                     .count = count,
                     .dtype = dtype,
                     .root = root},
                    comm, stream);
}

int ncclGroupStart() {
  Call call("ncclGroupStart", Needs::nothing);
  if (call.is_over()) return call.code();
  ++nccl_thread().group_depth;
  return kNcclSuccess;
}

int ncclGroupEnd() {
  Call call("ncclGroupEnd", Needs::nothing);
  NcclThread& thread = nccl_thread();
  if (call.is_over()) {
    if (call.code() != kNcclSuccess) thread = {};  // one that fails is ended all the same
    return call.code();
  }
  if (thread.group_depth == 0) return kNcclInvalidUsage;
  if (--thread.group_depth > 0) return kNcclSuccess;
  const std::vector<GroupedPart> parts = std::move(thread.parts);
  const std::vector<CommunicatorRef> initialising = std::move(thread.initialising);
  thread.parts.clear();
  thread.initialising.clear();
  int code = kNcclSuccess;
  for (const CommunicatorRef& communicator : initialising)
    if (const int formed = wait_formed(&call, communicator); formed != 0) code = formed;
  // One launch for each communicator and stream.
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto is_same = [&](const GroupedPart& other) {
      return other.communicator == parts[i].communicator && other.stream == parts[i].stream;
    };
    const auto rest = parts.begin() + static_cast<std::ptrdiff_t>(i);
    if (std::any_of(parts.begin(), rest, is_same)) continue;
    std::vector<CollectivePart> own;
    for (auto part = rest; part != parts.end(); ++part)
      if (is_same(*part)) own.push_back(part->part);
    if (const int begun = begin(parts[i].communicator, parts[i].stream, own); begun != 0)
      code = begun;
  }
  return code;
}
