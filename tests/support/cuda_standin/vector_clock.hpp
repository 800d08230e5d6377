// What an operation knows of the others: for each stream, how many of its operations came before.
//
// Threads: one at a time.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace noria::standin {

class VectorClock {
 public:
  uint64_t at(size_t id) const { return id < times_.size() ? times_[id] : 0; }
  void set(size_t id, uint64_t time) {
    if (id >= times_.size()) times_.resize(id + 1);
    times_[id] = time;
  }
  void join(const VectorClock& other) {
    if (other.times_.size() > times_.size()) times_.resize(other.times_.size());
    for (size_t i = 0; i < other.times_.size(); ++i)
      times_[i] = std::max(times_[i], other.times_[i]);
  }

 private:
  std::vector<uint64_t> times_;
};

}  // namespace noria::standin
