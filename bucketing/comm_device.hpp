// CommDevice: what a communicator of GPUs has beside its ring: this rank's GPU, NCCL on a stream of
// high priority, and the watch over what is under way.
//
// Ranks come together in three steps, after each of which they tell each other how it went: open(),
// which each does for itself; join(), by what introduce() gave all of them; start(), when there is
// an engine to fail.
//
// Costs: enqueue() is NCCL's call and six of the driver's; it does not wait for the device.
//
// Threads: enqueue() and give_back() one at a time; streams() any thread; the rest init only.
#pragma once

#include <noria/bucketing.h>

#include <memory>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/params.hpp"
#include "bucketing/collective.hpp"
#include "bucketing/control.hpp"
#include "bucketing/cuda_stream.hpp"
#include "bucketing/device_host.hpp"
#include "bucketing/device_memory.hpp"
#include "bucketing/device_watch.hpp"
#include "bucketing/device_work.hpp"
#include "bucketing/nccl_collective.hpp"

namespace noria::bucketing {

class CommDevice {
 public:
  // The libraries and the device. `nccl_comm` null: NCCL's communicator is to be ours.
  static Outcome<std::unique_ptr<CommDevice>> open(const Params& params, int32_t ordinal,
                                                   void* nccl_comm);
  // After leave(): what was under way has ended, or ends in a moment.
  ~CommDevice();
  CommDevice(const CommDevice&) = delete;
  CommDevice& operator=(const CommDevice&) = delete;

  // What all ranks need to know of this one; with_id: of rank 0.
  Outcome<std::string> introduce(bool with_id) const;
  struct Meeting {
    int32_t rank = 0, size = 1;
    ControlPlane* control = nullptr;  // null: one rank
    Nanoseconds deadline = 0;
    Nanoseconds timeout = 0;  // of an operation, without progress
  };
  // `introductions` of all ranks, in their order.
  Outcome<Ok> join(const Meeting& meeting, const std::vector<std::string>& introductions);
  Outcome<Ok> start(Engine& engine, const Meeting& meeting);
  // That the GPUs reach each other: a first operation, to its end.
  Outcome<Ok> try_out(const Engine& engine, Nanoseconds deadline);

  // The device's own check of a call's arguments; those of no bytes are not looked at.
  Outcome<Ok> check(const std::string& function, const Part* part) const;
  // Behind what `stream` was given so far, and before what it is given from now on. A failure
  // leaves this rank out of step. `done`, if it is not null, is recorded behind it.
  Outcome<Ok> enqueue(Kind kind, int32_t root, const Part* part, cuda::Stream stream,
                      CudaEvent* done);
  // For works: events that are used for a while.
  EventPool& events() { return events_; }

  // Ends the watch. True when what is under way is done, in time.
  bool finish(Nanoseconds deadline);
  // After finish(): NCCL's communicator, if it is ours.
  void leave(bool is_good, Nanoseconds deadline);

  const CudaDevice& device() const { return *device_; }
  CallerStreams& streams() { return streams_; }
  DeviceHost host() { return {.device = device_.get(), .streams = &streams_, .nccl = nccl_.get()}; }
  NcclCollective& nccl() { return *nccl_; }
  int nccl_version() const { return nccl_api_->version(); }

 private:
  CommDevice(std::unique_ptr<CudaDevice> device, const NcclApi& nccl, void* nccl_comm,
             DeviceMemory scratch);
  Outcome<bool> is_idle_within(Nanoseconds patience) const;
  Outcome<Ok> enqueue_within(Nanoseconds bound, Kind kind, int32_t root, const Part* part,
                             cuda::Stream stream, CudaEvent* done);
  Outcome<Ok> call(DeviceOperation& pair, Kind kind, int32_t root, const Part* part);

  const std::unique_ptr<CudaDevice> device_;
  const NcclApi* const nccl_api_;
  const nccl::Comm callers_comm_;  // null: ours
  CallerStreams streams_;
  EventPool events_;
  DeviceMemory scratch_;  // what a barrier reduces
  Nanoseconds timeout_ = 0;
  std::unique_ptr<NcclCollective> nccl_;
  std::unique_ptr<DeviceWatch> watch_;
};

}  // namespace noria::bucketing
