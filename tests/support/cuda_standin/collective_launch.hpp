// One rank's part in collectives, as an operation of its stream: it arrives, is run when all ranks
// have, and ends after that.
//
// Threads: as machine.hpp.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "tests/support/cuda_standin/machine.hpp"

namespace noria::standin {

struct Communicator;

enum class CollectiveKind { all_reduce, reduce_scatter, all_gather, broadcast, reduce };

struct CollectivePart {
  CollectiveKind kind = CollectiveKind::all_reduce;
  uint64_t sequence = 0;  // of its communicator
  uint64_t in = 0;
  uint64_t out = 0;
  size_t count = 0;
  int dtype = 0;
  int op = 0;
  int root = 0;
};

struct CollectiveLaunch {
  std::shared_ptr<Communicator> communicator;
  std::vector<CollectivePart> parts;
  size_t parts_run = 0;
  bool has_arrived = false;
  bool is_aborted = false;

  bool may_end() const { return is_aborted || parts_run == parts.size(); }
  // Whether it waits for other ranks, or may not arrive at all.
  bool is_stuck() const;
};

// Its accesses and sums, of all ranks whose last one this is. Moves bytes under the lock.
void arrive(const OperationRef& operation);

}  // namespace noria::standin
