// Where collectives of all ranks meet, and what becomes of them.
#include <algorithm>
#include <cstring>

#include "tests/support/cuda_standin/arithmetic.hpp"
#include "tests/support/cuda_standin/collective_launch.hpp"
#include "tests/support/cuda_standin/communicator.hpp"
#include "tests/support/cuda_standin/nccl.hpp"
#include "tests/support/cuda_standin/say.hpp"

namespace noria::standin {

namespace {

struct Sides {
  Access in, out;
};

// What a rank reads and writes.
Sides sides_of(const CollectivePart& part, size_t rank, size_t ranks) {
  const size_t bytes = part.count * dtype_bytes(part.dtype);
  const bool is_root = static_cast<size_t>(part.root) == rank;
  size_t in = bytes;
  size_t out = bytes;
  switch (part.kind) {
    case CollectiveKind::all_reduce: break;
    case CollectiveKind::reduce_scatter: in = bytes * ranks; break;
    case CollectiveKind::all_gather: out = bytes * ranks; break;
    case CollectiveKind::broadcast: in = is_root ? bytes : 0; break;
    case CollectiveKind::reduce: out = is_root ? bytes : 0; break;
  }
  return {{part.in, in, false, 0}, {part.out, out, true, 0}};
}

bool fit(const CollectivePart& a, const CollectivePart& b) {
  return a.kind == b.kind && a.count == b.count && a.dtype == b.dtype && a.op == b.op &&
         a.root == b.root;
}

// From copies of what the ranks gave, since a result may lie in an input's place.
void compute(const Meeting& meeting) {
  const size_t ranks = meeting.parts.size();
  std::vector<std::vector<std::byte>> given(ranks);
  std::vector<const std::byte*> in(ranks);
  for (size_t rank = 0; rank < ranks; ++rank) {
    const Access from = sides_of(meeting.parts[rank], rank, ranks).in;
    given[rank].resize(from.bytes);
    if (from.bytes > 0) memcpy(given[rank].data(), Memory::backing(from.first), from.bytes);
    in[rank] = given[rank].data();
  }
  for (size_t rank = 0; rank < ranks; ++rank) {
    const CollectivePart& part = meeting.parts[rank];
    const size_t bytes = part.count * dtype_bytes(part.dtype);
    auto* const out = static_cast<std::byte*>(Memory::backing(part.out));
    const auto root = static_cast<size_t>(part.root);
    switch (part.kind) {
      case CollectiveKind::reduce:
        if (rank != root) break;
        [[fallthrough]];
      case CollectiveKind::all_reduce: reduce(part.dtype, part.op, out, in, part.count); break;
      case CollectiveKind::reduce_scatter: {
        std::vector<const std::byte*> own;
        for (const std::byte* from : in) own.push_back(from + rank * bytes);
        reduce(part.dtype, part.op, out, own, part.count);
        break;
      }
      case CollectiveKind::all_gather:
        for (size_t from = 0; from < ranks; ++from) memcpy(out + from * bytes, in[from], bytes);
        break;
      case CollectiveKind::broadcast: memcpy(out, in[root], bytes); break;
    }
  }
}

void run(Meeting* meeting) {
  Machine& machine = Machine::instance();
  const size_t ranks = meeting->parts.size();
  bool is_allowed = true;
  for (size_t rank = 0; rank < ranks; ++rank) {
    const Sides sides = sides_of(meeting->parts[rank], rank, ranks);
    is_allowed &= machine.check(*meeting->operations[rank], {sides.in, sides.out});
  }
  if (is_allowed) compute(*meeting);
  for (const OperationRef& operation : meeting->operations) ++operation->collective->parts_run;
}

void refuse(World* world, Meeting* meeting, size_t rank, size_t other) {
  const std::string text =
      say("%s and %s do not fit together", meeting->operations[rank]->name->c_str(),
          meeting->operations[other]->name->c_str());
  meeting->die();
  for (const CommunicatorRef& member : world->members) {
    if (member == nullptr) continue;
    member->async_error = kNcclInternalError;
    member->last_error = text;
  }
}

void come(const OperationRef& operation, const CollectivePart& part) {
  const CommunicatorRef& communicator = operation->collective->communicator;
  World* const world = communicator->world.get();
  Meeting& meeting = world->meetings[part.sequence];
  if (meeting.is_dead) return;
  const size_t ranks = world->members.size();
  meeting.operations.resize(ranks);
  meeting.parts.resize(ranks);
  meeting.operations[communicator->rank] = operation;
  meeting.parts[communicator->rank] = part;
  if (++meeting.arrived < ranks) return;
  for (size_t rank = 1; rank < ranks; ++rank)
    if (!fit(meeting.parts[0], meeting.parts[rank])) return refuse(world, &meeting, 0, rank);
  run(&meeting);
  world->meetings.erase(part.sequence);
}

}  // namespace

bool CollectiveLaunch::is_stuck() const {
  if (may_end()) return false;
  return has_arrived || communicator->is_stalled;
}

void arrive(const OperationRef& operation) {
  operation->collective->has_arrived = true;
  for (const CollectivePart& part : operation->collective->parts) come(operation, part);
  Machine::instance().changed.notify_all();
}

std::map<void*, CommunicatorRef>& communicators() {
  static auto& all = *new std::map<void*, CommunicatorRef>;
  return all;
}

bool wait_idle(Machine& machine, const CommunicatorRef& communicator,
               std::unique_lock<std::mutex>* lock) {
  const std::vector<OperationRef> launched = communicator->launched;
  return std::all_of(launched.begin(), launched.end(),
                     [&](const OperationRef& operation) { return machine.wait(operation, lock); });
}

void leave(const CommunicatorRef& communicator) {
  communicator->world->members[communicator->rank] = nullptr;
  communicator->launched.clear();
  communicator->begun.clear();
}

void abort_launches(Machine& machine, const Communicator& communicator) {
  for (const OperationRef& operation : communicator.launched) {
    CollectiveLaunch& launch = *operation->collective;
    if (operation->is_done || launch.may_end()) continue;
    launch.is_aborted = true;
    for (const CollectivePart& part : launch.parts)
      communicator.world->meetings[part.sequence].die();
  }
  machine.poke();
}

}  // namespace noria::standin
