// Communicators of NCCL: who belongs together, and where their collectives meet.
//
// The ranks of a world are threads of one process, or of several processes of this machine: then
// each process has its own world of the same ranks, hears of the others' by its lines
// (exchange.hpp), and computes the results of its own.
//
// Threads: as machine.hpp.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/support/cuda_standin/collective_launch.hpp"
#include "tests/support/cuda_standin/exchange.hpp"
#include "tests/support/cuda_standin/machine.hpp"

namespace noria::standin {

// A rank that has come to a collective.
struct Arrival {
  OperationRef operation;  // null: it has not come, or is another process's
  CollectivePart part;
  bool is_allowed = false;  // to touch what it names
  std::string given;        // a copy, since a result may lie in an input's place
};

// The ranks' n-th collective.
struct Meeting {
  std::vector<Arrival> arrivals;  // by rank
  size_t arrived = 0;
  bool is_dead = false;  // they do not fit, or one was aborted: it never runs

  // What it holds would hold the communicators, and these the world that it stands in.
  void die() {
    is_dead = true;
    arrivals.clear();
  }
};

// Where a rank is.
struct Place {
  bool is_taken = false;
  std::string host;  // as NCCL tells hosts apart
  int device = 0;
  bool is_makers = false;      // in the process that made the id
  std::shared_ptr<Line> line;  // to its process; null: this one
  bool has_left = false;
};

// The ranks of one unique id. It lives as long as one of them here, or a line.
struct World {
  uint64_t address = 0;  // of the id's maker
  uint64_t number = 0;
  std::vector<std::shared_ptr<Communicator>> members;  // null: elsewhere, or gone
  std::vector<Place> places;
  size_t joined = 0;
  std::map<uint64_t, Meeting> meetings;
  std::vector<std::shared_ptr<Line>> lines;
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

// ---- who belongs together -----------------------------------------------------------------------

struct WorldId {
  uint64_t address = 0;
  uint64_t number = 0;
};
// Null, and `code`: that rank cannot be of it.
CommunicatorRef join(const WorldId& id, size_t ranks, size_t rank, Context* context, int* code);
void leave(const CommunicatorRef& communicator, std::unique_lock<std::mutex>* lock);
// All of the world that are here fail by it.
void fail_members(const World& world, int code, const std::string& text);
// A word came. False: it makes no sense, and the line is given up.
bool hear(Line& line, const Word& word, std::string_view payload);
// A line is over: whose ranks have not left are lost.
void hang_up(const std::shared_ptr<Line>& line);

// ---- collectives --------------------------------------------------------------------------------

void come(World* world, size_t rank, Arrival arrival);
// Whether the input that came with a word is as long as its part says.
bool fits(const Word& word, size_t bytes, size_t ranks);
// Waits for all that it was told; false after a minute.
bool wait_idle(Machine& machine, const CommunicatorRef& communicator,
               std::unique_lock<std::mutex>* lock);
// Its collectives end without having run, those that their stream has not come to as well.
void abort_launches(Machine& machine, const Communicator& communicator);

}  // namespace noria::standin
