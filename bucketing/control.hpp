// ControlPlane: the ranks' TCP star around rank 0: who is there, small gathers, and bad news.
//
// A thread of its own sleeps on the sockets: no periodic wake-ups. EOF or a reset without goodbye
// means that a rank died; TCP keep-alive finds a cut link; a stopped process keeps its sockets and
// is alive. The first failure that reaches rank 0 fans out and is sticky: failed() turns true
// everywhere, with the same text. Whoever announces waits for rank 0's verdict, a second at most,
// because what it saw may be the consequence of what rank 0 knows already: the neighbour that hung
// up may itself have failed because another rank died.
//
// A stranger at rank 0's port is dropped without harm: it must bring the job's token first.
//
// Threads: join() init only; all_gather() and pass_right() one at a time per rank, the same
// order on all ranks; the rest any thread.
#pragma once

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
    std::string root_host;  // where rank 0 listens: a name or a numeric address
    uint16_t root_port = 0;
    int listener_fd = -1;  // rank 0: an already listening socket, taken over; -1: make one
    uint64_t token_low = 0, token_high = 0;  // proves that a caller belongs to this job
    Nanoseconds deadline = 0;
  };

  // Returns when every rank has joined. MISSING names the ranks that did not, on every rank that
  // did.
  static Outcome<std::unique_ptr<ControlPlane>> join(const Options& options);
  ~ControlPlane();
  // Says goodbye, so that the others do not take the end for a death. At most a second, to hand
  // what is queued to the kernel. Failed with ABORTED from then on, on this rank alone.
  void hang_up();

  int32_t rank() const;
  int32_t size() const;
  // The numeric address by which this host reaches rank 0 (rank 0: by which the others reach it).
  const std::string& local_host() const;

  // Every rank gives bytes and gets all of them in rank order; at most 16 MiB together, of however
  // few ranks, else all get ARG. `what` is compared, so that ranks out of step get ORDER instead of
  // each other's bytes. Past the deadline all ranks get TIMEOUT naming those that did not come.
  Outcome<std::vector<std::string>> all_gather(const std::string& what, const std::string& bytes,
                                               Nanoseconds deadline);

  // Every rank gives bytes to its right neighbour, the next rank, and gets its left neighbour's: as
  // many as it gave, else all ranks get MISMATCH. Each rank's alone may fill 16 MiB, so that it
  // serves more ranks than all_gather(). Else the same.
  Outcome<std::string> pass_right(const std::string& what, const std::string& bytes,
                                  Nanoseconds deadline);

  // Tells all ranks; the first failure wins. ABORTED is true here at once, the rest when rank 0
  // answered.
  void announce(const Failure& failure);
  // Announces, and returns what won: what all ranks will say. At most a second, of a TIMEOUT three.
  Failure settle(const Failure& failure);
  bool failed() const;      // one relaxed load
  Failure failure() const;  // after failed()

  // Called from the control thread when failed() turned true, or soon if it is true already. An
  // empty function takes it back: no call is under way afterwards.
  void on_failure(std::function<void()> wake);

  // What this rank owes the others, in words that follow its name, as "has not given 'a'"; empty:
  // nothing. Called from the control thread when a rank asks around. An empty function takes it
  // back: no call is under way afterwards.
  void on_question(std::function<std::string()> answer);
  // Asks every rank what it owes, and logs a warning of `what` and their answers when they are
  // there, in three seconds at most; then of rank 0, where it tells none. A failure of code TIMEOUT
  // that a rank announces asks around by itself: the answers stand in it on all ranks. Returns at
  // once.
  void ask_around(const std::string& what);

  // Says goodbye and waits until all ranks did: so that no rank hangs up on one that still reads.
  void leave(Nanoseconds deadline);

 private:
  class State;
  explicit ControlPlane(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace noria::bucketing
