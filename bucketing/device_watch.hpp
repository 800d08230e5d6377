// DeviceWatch: what becomes of the operations that a GPU was given, while nobody waits for them.
//
// A thread that looks every kLook while an operation is under way and sleeps otherwise. It fails
// the communicator, on all ranks, when NCCL or CUDA found an error, or when an operation whose
// inputs are there has not ended within its bound: at half of it a warning says what each rank
// owes. Once the communicator has failed, by whomever, what is under way on the device is ended by
// NCCL's abort, so that no stream waits for ever for a rank that will not come.
//
// A caller's NCCL communicator is aborted only if something of ours is under way on it.
//
// Threads: one of its own; create() and destructor init only.
#pragma once

#include <atomic>
#include <memory>

#include "base/clock.hpp"
#include "base/own_thread.hpp"
#include "bucketing/control.hpp"
#include "bucketing/engine.hpp"
#include "bucketing/nccl_collective.hpp"
#include "bucketing/seat.hpp"

namespace noria::bucketing {

class DeviceWatch {
 public:
  static constexpr Nanoseconds kLook = 50_ms;

  struct Options {
    NcclCollective* nccl = nullptr;
    Engine* engine = nullptr;
    ControlPlane* control = nullptr;  // null: one rank
  };
  static Outcome<std::unique_ptr<DeviceWatch>> create(const Options& options);
  ~DeviceWatch();
  DeviceWatch(const DeviceWatch&) = delete;
  DeviceWatch& operator=(const DeviceWatch&) = delete;

  // Whether what was launched so far is done, or the deadline has passed before. After the last
  // launch, instead of the thread, which it ends.
  bool wait_until_idle(Nanoseconds deadline);

 private:
  // What can be seen to go on.
  struct Sight {
    uint64_t begun = 0, launched = 0, ended = 0;
    bool is_oldest_ready = false;  // the inputs of the first that has not ended
    bool is_idle() const { return ended == begun; }
    // Whether it is for NCCL, and thus perhaps for another rank, to go on.
    bool is_due() const { return launched != begun || is_oldest_ready; }
    bool operator==(const Sight&) const = default;
  };

  explicit DeviceWatch(const Options& options) : options_(options) {}
  void run();
  void stop();
  Outcome<Sight> look();
  // False when there is nothing more to watch.
  bool watch();
  Outcome<Ok> judge(const Sight& seen);
  void give_up(const Failure& failure);

  const Options options_;
  uint64_t ended_ = 0;  // operations that are known to have ended
  Sight last_;
  Nanoseconds still_since_ = 0;
  bool has_warned_ = false;  // of this standstill
  std::atomic<bool> stopping_{false};
  Sleeper between_looks_;  // which stop() ends
  OwnThread thread_;       // last: it uses all of the above
};

}  // namespace noria::bucketing
