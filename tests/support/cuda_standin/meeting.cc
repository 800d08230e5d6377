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

// The result of a rank that is here.
void compute(const Meeting& meeting, size_t rank, const std::vector<const std::byte*>& in) {
  const CollectivePart& part = meeting.arrivals[rank].part;
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
      for (size_t from = 0; from < in.size(); ++from) memcpy(out + from * bytes, in[from], bytes);
      break;
    case CollectiveKind::broadcast: memcpy(out, in[root], bytes); break;
  }
}

void run(const Meeting& meeting) {
  bool is_allowed = true;
  std::vector<const std::byte*> in;
  for (const Arrival& arrival : meeting.arrivals) {
    is_allowed &= arrival.is_allowed;
    in.push_back(reinterpret_cast<const std::byte*>(arrival.given.data()));
  }
  for (size_t rank = 0; rank < meeting.arrivals.size(); ++rank) {
    const OperationRef& operation = meeting.arrivals[rank].operation;
    if (operation == nullptr) continue;
    if (is_allowed) compute(meeting, rank, in);
    ++operation->collective->parts_run;
  }
}

std::string describe(const Meeting& meeting, size_t rank) {
  const Arrival& arrival = meeting.arrivals[rank];
  if (arrival.operation != nullptr) return *arrival.operation->name;
  return say("collective %llu of rank %zu, of another process",
             static_cast<unsigned long long>(arrival.part.sequence), rank);
}

void refuse(World* world, Meeting* meeting, size_t rank, size_t other) {
  const std::string text = say("%s and %s do not fit together", describe(*meeting, rank).c_str(),
                               describe(*meeting, other).c_str());
  meeting->die();
  fail_members(*world, kNcclInternalError, text);
}

// What it reads and writes it does now: later nobody could have changed it in order.
Arrival arrival_of(const OperationRef& operation, const CollectivePart& part, size_t ranks) {
  const Communicator& communicator = *operation->collective->communicator;
  const Sides sides = sides_of(part, communicator.rank, ranks);
  Arrival arrival{.operation = operation, .part = part, .is_allowed = false, .given = {}};
  arrival.is_allowed = Machine::instance().check(*operation, {sides.in, sides.out});
  if (arrival.is_allowed)
    arrival.given.assign(static_cast<const char*>(Memory::backing(sides.in.first)), sides.in.bytes);
  return arrival;
}

}  // namespace

bool fits(const Word& word, size_t bytes, size_t ranks) {
  const CollectivePart& part = word.part;
  const bool is_known = part.kind <= CollectiveKind::reduce && dtype_bytes(part.dtype) != 0 &&
                        part.root >= 0 && static_cast<size_t>(part.root) < ranks &&
                        part.count <= kMostBytes;
  if (!is_known) return false;
  return bytes == (word.is_allowed ? sides_of(part, word.rank, ranks).in.bytes : 0);
}

void come(World* world, size_t rank, Arrival arrival) {
  const uint64_t sequence = arrival.part.sequence;
  Meeting& meeting = world->meetings[sequence];
  if (meeting.is_dead) return;
  const size_t ranks = world->members.size();
  meeting.arrivals.resize(ranks);
  meeting.arrivals[rank] = std::move(arrival);
  if (++meeting.arrived < ranks) return;
  for (size_t other = 1; other < ranks; ++other)
    if (!fit(meeting.arrivals[0].part, meeting.arrivals[other].part))
      return refuse(world, &meeting, 0, other);
  run(meeting);
  world->meetings.erase(sequence);
}

bool CollectiveLaunch::is_stuck() const {
  if (may_end()) return false;
  return has_arrived || communicator->is_stalled;
}

void arrive(const OperationRef& operation) {
  CollectiveLaunch& launch = *operation->collective;
  World& world = *launch.communicator->world;
  const size_t rank = launch.communicator->rank;
  launch.has_arrived = true;
  for (const CollectivePart& part : launch.parts) {
    Arrival arrival = arrival_of(operation, part, world.members.size());
    Exchange::instance().say(world,
                             {.kind = WordKind::arrival,
                              .rank = static_cast<uint32_t>(rank),
                              .is_allowed = arrival.is_allowed,
                              .part = part},
                             arrival.given);
    come(&world, rank, std::move(arrival));
  }
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
