// Ranks of a job as forked test processes, or as threads of the test where nobody needs to die.
//
// Threads: as Crew.
#pragma once

#include <algorithm>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "tests/support/crew.hpp"

namespace noria::test {

// Runs body(rank) on one thread a rank.
inline void run_rank_threads(int32_t size, const std::function<void(int32_t)>& body) {
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < size; ++rank) threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

using RankBody = std::function<void(int32_t rank, Wire& parent)>;

// One forked process a rank; the destructor kills what is left.
class RankCrew {
 public:
  RankCrew(int32_t size, const RankBody& body)
      : size_(size), crew_(std::vector<Body>(static_cast<size_t>(size), [body](Post& post) {
          body(post.side, post.parent);
        })) {}

  Wire& wire(int32_t rank) { return crew_.wire(static_cast<size_t>(rank)); }
  void kill(int32_t rank, int signal) { crew_.kill(static_cast<size_t>(rank), signal); }
  pid_t pid(int32_t rank) const { return crew_.pid(static_cast<size_t>(rank)); }
  Ending wait(int32_t rank) { return crew_.wait(static_cast<size_t>(rank)); }

  // Every rank but those in `except` ends well.
  void expect_success(const std::vector<int32_t>& except = {}) {
    for (int32_t rank = 0; rank < size_; ++rank) {
      if (std::find(except.begin(), except.end(), rank) != except.end()) continue;
      const Ending ending = wait(rank);
      EXPECT_EQ(ending.exit_code, 0) << "rank " << rank << (ending.timed_out ? " timed out" : "")
                                     << ", signal " << ending.signal;
    }
  }

 private:
  int32_t size_;
  Crew crew_;
};

inline void run_ranks(int32_t size, const RankBody& body) { RankCrew(size, body).expect_success(); }

inline bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace noria::test
