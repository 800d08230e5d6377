// ControlPlane: the ranks' TCP star around rank 0: who is there, small gathers, and bad news.
//
// A thread of its own sleeps on the sockets. EOF or a reset means that a rank died; TCP keep-alive
// (1 s) finds a cut link; a stopped process keeps its sockets and is alive. The first failure that
// any rank announces, or that rank 0 sees, fans out to all and is sticky: failed() turns true
// everywhere.
//
// Threads: join() init only; all_gather() one at a time per rank and the same order on all ranks;
// the rest any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "bucketing/failure.hpp"

namespace noria::bucketing {

class ControlPlane {
 public:
  struct Options {
    int32_t rank = 0;
    int32_t size = 1;
    std::string root_host;  // where rank 0 listens
    uint16_t root_port = 0;
    int listener_fd = -1;  // rank 0: an already listening socket, taken over; -1: make one
    uint64_t token_low = 0, token_high = 0;  // proves that a caller belongs to this job
    Nanoseconds deadline = 0;
  };

  // Returns when every rank has joined. MISSING names the ranks that did not.
  static Outcome<std::unique_ptr<ControlPlane>> join(const Options& options);
  // Says goodbye, so that the others do not take the end for a death.
  ~ControlPlane();

  int32_t rank() const;
  int32_t size() const;

  // Every rank gives bytes and gets all of them in rank order. `what` is compared, so that ranks
  // out of step get ORDER instead of each other's bytes.
  Outcome<std::vector<std::string>> all_gather(const std::string& what, const std::string& bytes,
                                               Nanoseconds deadline);

  // Tells all ranks; the first failure wins.
  void announce(const Failure& failure);
  bool failed() const;      // one relaxed load
  Failure failure() const;  // after failed()

  // Called from the control thread when failed() turns true; set before anything can fail.
  void on_failure(std::function<void()> wake);

 private:
  class State;
  explicit ControlPlane(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace noria::bucketing
