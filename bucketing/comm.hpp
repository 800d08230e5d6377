// Comm: what a noria_comm is: parameters, device, control plane and engine of one communicator.
//
// create() meets the other ranks first and opens the device then, so that a rank that cannot take
// part says so to all: every rank fails with the same text, which names that rank.
//
// Threads: create() and destructor init only; collectives one at a time; abort(), status() and the
// waiting calls of works any thread.
#pragma once

#include <noria/bucketing.h>
#include <noria/observe.h>

#include <atomic>
#include <list>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/params.hpp"
#include "bucketing/collective.hpp"
#include "bucketing/comm_device.hpp"
#include "bucketing/control.hpp"
#include "bucketing/engine.hpp"
#include "bucketing/failure.hpp"
#include "bucketing/forks.hpp"
#include "bucketing/reducer.hpp"
#include "bucketing/timeline.hpp"
#include "verbs/provider.hpp"

namespace noria::bucketing {
class Comm;
}

// A collective that somebody may wait for. The communicator owns it until it is both released and
// done; until it is released it keeps the communicator, which may have ended meanwhile.
struct noria_work {
  noria::bucketing::Collective collective;
  std::optional<noria::bucketing::DeviceWork> device_work;  // in place of it: an operation on a GPU
  std::shared_ptr<noria::bucketing::Comm> comm;
  noria::bucketing::Engine* engine = nullptr;
  std::atomic<bool> is_released{false};
  noria::bucketing::Origin origin;
};

namespace noria::bucketing {

// Held by its handle, its reducers and its works: the last of them frees it.
class Comm : public std::enable_shared_from_this<Comm> {
 public:
  static Outcome<std::unique_ptr<Comm>> create(const noria_comm_config& config);
  // As noria_comm_split(); null for a rank without a color.
  Outcome<std::unique_ptr<Comm>> split(int32_t color, int32_t key);
  ~Comm();
  Comm(const Comm&) = delete;
  Comm& operator=(const Comm&) = delete;

  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }

  // One part, or none for a barrier. Waits for the result.
  Outcome<Ok> run(Kind kind, int32_t root, const Part* part);
  // The same, under way when it returns.
  Outcome<noria_work*> launch(Kind kind, int32_t root, const Part* part);
  // The stream on the GPU that `stream` names; nothing: the host.
  Outcome<std::optional<cuda::Stream>> read_stream(const noria_stream* stream);
  // In such a stream. `function` names the call; null without `with_work`.
  Outcome<noria_work*> launch_on(cuda::Stream stream, const std::string& function, Kind kind,
                                 int32_t root, const Part* part, bool with_work);

  // Leaves the other ranks, for whose end it waits a second at most. What is under way, or called
  // later, fails with ABORTED.
  void end();
  void abort(const std::string& why);
  // What every call fails with from now on; OK before.
  Outcome<Ok> status() const;
  noria_comm_info info() const;
  ReducerHost reducer_host();

 private:
  // Longer than ranks take to say the same of a time-out (ControlPlane::settle).
  static constexpr Nanoseconds kSettling = 5_s;
  static std::string on_rank(int32_t rank, const std::string& text) {
    return "rank " + std::to_string(rank) + ": " + text;
  }

  Outcome<std::vector<std::string>> gather(const std::string& what, const std::string& bytes);
  // `trace_name` is as in Timeline::split_name(); empty where it was not split off.
  static Outcome<std::unique_ptr<Comm>> make(const noria_comm_config& config,
                                             const std::string& trace_name);
  Comm(const Params& params, int32_t rank, int32_t size);
  Outcome<Ok> connect(const noria_comm_config& config, const std::string& bad_params,
                      Nanoseconds deadline);
  Outcome<std::unique_ptr<transport::Domain>> open_device();
  Outcome<Ok> start_engine(std::unique_ptr<transport::Domain> domain, std::unique_ptr<Ring> ring);
  Outcome<Ok> try_ring(Nanoseconds deadline);
  Outcome<Ok> open_gpu(const noria_comm_config& config);
  Outcome<Ok> join_gpus(Nanoseconds deadline);
  // True when what is under way on the GPU is done.
  bool end_work_on_gpu();
  // What every call fails with from now on, and all ranks', once the GPU or NCCL has failed here.
  Failure fail_by_gpu(const Failure& failure);
  // That, where the device failed before a launch; what the caller can mend only the caller hears.
  Failure refuse_by_gpu(const Failure& failure);
  Failure on_this_rank(const Failure& failure) const;
  Outcome<Ok> start_timeline(const std::string& group, const ClockOffset& clock);
  // All ranks get the failure of the lowest rank that has one. One rank: its own.
  Outcome<Ok> agree(const std::string& what, const Outcome<Ok>& mine, Nanoseconds deadline);
  Outcome<Ok> check_no_step_open() const;
  void fill(Collective& collective, Kind kind, int32_t root, const Part* part) const;
  void sweep_works();

  Params params_;
  int32_t rank_ = 0;
  int32_t size_ = 1;
  std::string host_;  // by which the other ranks reach this one; empty with one rank
  Nanoseconds start_timeout_ = 0;
  Nanoseconds collective_timeout_ = 0;
  OpenSteps open_steps_;
  uint32_t splits_ = 0;                 // so many calls of split(), on every rank
  std::string trace_name_;              // stands behind NORIA_TRACE in the file's name
  bool is_traced_ = false;              // some rank's NORIA_TRACE is set; known after agree()
  std::unique_ptr<Timeline> timeline_;  // null where this rank's is not

  std::shared_ptr<const verbs::Provider> provider_;  // null with one rank, like control_
  std::unique_ptr<ControlPlane> control_;
  std::unique_ptr<CommDevice> gpu_;  // null: of the host
  std::list<noria_work> works_;
  std::unique_ptr<Engine> engine_;
};

}  // namespace noria::bucketing

struct noria_comm {
  std::shared_ptr<noria::bucketing::Comm> comm;
  noria::bucketing::Origin origin;
};
