// A communicator of the C API as a tool wants it: failures are thrown, sums over ranks are one
// call.
//
// Threads: one at a time.
#pragma once

#include <noria/observe.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "perf/exit_codes.hpp"

namespace noria::perf {

class LocalRank;

// Throws ToolError with the library's own text, prefixed by what was being done.
void require(noria_status status, const char* what);

struct ReleaseWork {
  void operator()(noria_work* work) const { noria_work_release(work); }
};
// Released before the communicator, also where a failure unwinds.
using Work = std::unique_ptr<noria_work, ReleaseWork>;

class Communicator {
 public:
  // As one of the ranks that this tool forked. Throws also when the parent knows of a rank that was
  // lost before it joined: the library would wait for it until the start time-out. `gpu`: of GPUs,
  // this rank's by CUDA's number.
  explicit Communicator(LocalRank& rank, std::optional<int32_t> gpu = std::nullopt);
  // As the launcher's variables say.
  explicit Communicator(std::optional<int32_t> gpu = std::nullopt);

  noria_comm* get() const { return comm_.get(); }
  int rank() const { return rank_; }
  int size() const { return size_; }
  noria_comm_info info() const;
  // Throws once the communicator has failed. Costs next to nothing.
  void check(const char* what) const { require(noria_comm_status(comm_.get()), what); }

  void barrier();
  // Element by element over all ranks; every rank gets the result.
  std::vector<double> largest(std::vector<double> values);
  std::vector<double> sum(std::vector<double> values);
  // One text of each rank, in order of rank; cut after 511 bytes.
  std::vector<std::string> gather(const std::string& text);

 private:
  struct Destroy {
    void operator()(noria_comm* comm) const { noria_comm_destroy(comm); }
  };
  void take(noria_comm* comm);

  std::unique_ptr<noria_comm, Destroy> comm_;
  int rank_ = 0;
  int size_ = 1;
};

}  // namespace noria::perf
