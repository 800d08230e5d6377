// Communicators of NCCL: who belongs together, and where their collectives meet.
//
// Threads: as machine.hpp.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/cuda_standin/collective_launch.hpp"
#include "tests/support/cuda_standin/machine.hpp"

namespace noria::standin {

// The ranks' n-th collective.
struct Meeting {
  std::vector<OperationRef> operations;  // by rank; null: has not come
  std::vector<CollectivePart> parts;
  size_t arrived = 0;
  bool is_dead = false;  // they do not fit, or one was aborted: it never runs

  // What it holds would hold the communicators, and these the world that it stands in.
  void die() {
    is_dead = true;
    operations.clear();
  }
};

// The ranks of one unique id. It lives as long as one of them.
struct World {
  std::vector<std::shared_ptr<Communicator>> members;  // null: has not come, or left again
  size_t joined = 0;
  int error = 0;
  std::map<uint64_t, Meeting> meetings;
};

struct Communicator {
  std::shared_ptr<World> world;
  size_t rank = 0;
  Context* context = nullptr;
  bool is_blocking = true;
  bool is_stalled = false;  // what it is told arrives nowhere
  int async_error = 0;
  std::string last_error;
  uint64_t sequence = 0;
  std::vector<OperationRef> launched;
  // Of one that does not block: what has been begun but stands on no stream yet.
  std::vector<std::function<void()>> begun;
  std::thread::id begun_by;
  int polls_left = 0;
  std::map<void*, Access> registered;

  bool is_formed() const { return world->joined == world->members.size(); }
};

using CommunicatorRef = std::shared_ptr<Communicator>;

// By their handles.
std::map<void*, CommunicatorRef>& communicators();
// Waits for all that it was told; false after a minute.
bool wait_idle(Machine& machine, const CommunicatorRef& communicator,
               std::unique_lock<std::mutex>* lock);
void leave(const CommunicatorRef& communicator);
// Its collectives end without having run, those that their stream has not come to as well.
void abort_launches(Machine& machine, const Communicator& communicator);

}  // namespace noria::standin
