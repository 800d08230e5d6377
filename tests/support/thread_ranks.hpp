// Ranks as threads of one process, with neither sockets nor a device: what a Reducer needs of a
// communicator, so that every rule of a step can be tried in milliseconds and under TSan.
//
// Link it instead of the engine and the control plane: it defines those two classes for itself. One
// thread drives all ranks; it adds a segment as soon as it is ready on all of them, in the order in
// which the ring adds, and while the ranks still write later segments.
//
// Threads: each Seat is its rank's; the rest any thread.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "bucketing/reducer.hpp"

namespace noria::test {

// What the ranks of one communicator share.
class ThreadRanks {
 public:
  explicit ThreadRanks(int32_t size);
  ~ThreadRanks();

  // Valid as long as this object.
  const bucketing::ReducerHost& host(int32_t rank) const;

  // Runs body(rank) on a thread for each rank and waits for all.
  void run(const std::function<void(int32_t rank)>& body);

  // In place of what that rank says where all are asked for `what`, as another build of noria
  // might.
  void forge(int32_t rank, const std::string& what, const std::string& bytes);

  uint64_t wakes(int32_t rank) const;  // calls of Engine::wake()

  class Shared;

 private:
  struct Seat {
    std::unique_ptr<bucketing::Engine> engine;
    std::unique_ptr<bucketing::ControlPlane> control;
    bucketing::OpenSteps open_steps;
    bucketing::ReducerHost host;
  };
  std::unique_ptr<Shared> shared_;
  std::vector<std::unique_ptr<Seat>> seats_;
};

}  // namespace noria::test
