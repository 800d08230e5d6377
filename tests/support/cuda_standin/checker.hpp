// Who touched which bytes, and whether something put them in order.
//
// Each operation that touches memory comes with its clock. Two that touch the same bytes, one of
// them writing, must be ordered by what the device promises: the order of a stream, an event that
// was waited for, a host that had seen the first one end. When they happened to run is nothing. Of
// each pair of operations the first such place is told.
//
// Threads: one at a time.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/cuda_standin/vector_clock.hpp"

namespace noria::standin {

struct Access {
  uint64_t first = 0;
  uint64_t bytes = 0;
  bool writes = false;
  uint32_t part = 0;  // of a kernel: its block, for blocks are not ordered
};

// An operation, as far as this is concerned.
struct Actor {
  size_t clock_id = 0;
  uint64_t time = 0;  // its own in `clock`
  uint64_t number = 0;
  std::shared_ptr<const std::string> name;  // with its stream
};

class Checker {
 public:
  // Adds what it finds to `violations`.
  void touch(const Actor& actor, const VectorClock& clock, const Access& access,
             std::vector<std::string>* violations);
  // Of memory that is gone.
  void forget(uint64_t first, uint64_t bytes);
  void clear();

 private:
  struct Touch {
    Actor actor;
    uint32_t part;
  };
  struct Cell {  // bytes with one history
    uint64_t end;
    std::vector<Touch> writer;   // none or one
    std::vector<Touch> readers;  // since then; the last one of each stream
  };
  using Cells = std::map<uint64_t, Cell>;

  void split(uint64_t at);
  void fill_gaps(uint64_t first, uint64_t end);
  void compare(const Actor& actor, const VectorClock& clock, const Access& access,
               const Touch& before, bool before_wrote, uint64_t at, uint64_t end,
               std::vector<std::string>* violations);

  Cells cells_;
  std::set<std::pair<uint64_t, uint64_t>> told_;
};

}  // namespace noria::standin
