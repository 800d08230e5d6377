// Faults: what NORIA_SOFT_FAULTS (base/soft_faults.hpp) does to the devices of this process.
//
// A rule about queue pairs has a count of its own for each of them, which lives as long as the
// object; one about a port counts the requests of all its queue pairs together, as they begin.
// What a request meets is decided once, when it begins.
//
// A port that is down takes nothing to or from the wire. Its own queue pairs see it at once; peers
// see it in the states that its queue pairs publish (kPortDownBit). Requests wait as for a peer
// that does not answer, so that a flap which is shorter than timeout x retries harms nothing. The
// service thread tells of it, and brings the port up again.
//
// Where no rule is set there is no Faults, no queue pair has QpFaults, and what that costs is one
// test of a pointer a step.
//
// Threads: any thread; take_faulty_step() under Qp::exec, tend() by the service thread.
#pragma once

#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <memory>
#include <string_view>
#include <vector>

#include "base/mutex.hpp"
#include "verbs/soft/fault_schedule.hpp"
#include "verbs/soft/shared_layout.hpp"
#include "verbs/soft/spin_lock.hpp"
#include "verbs/soft/step.hpp"

namespace noria::soft {

struct Context;

// A rule that waits for its count.
struct ArmedFault {
  const SoftFault* rule;
  FaultSchedule schedule;
};

// What has begun so far.
struct FaultTally {
  uint64_t messages = 0, bytes = 0;

  uint64_t of(const SoftFault& rule) const {
    return rule.count == SoftFault::Count::bytes ? bytes : messages;
  }
  void add(uint64_t message_bytes) {
    ++messages;
    bytes += message_bytes;
  }
};

// Of one queue pair that a rule may concern. Guarded by its exec.
struct QpFaults {
  uint32_t device;
  std::vector<ArmedFault> armed;
  FaultTally tally;
  uint64_t counted = 0;     // requests below this number have begun
  uint64_t unanswered = 0;  // the request below this number took effect; its answer was lost
  Nanoseconds lost_until = 0, mute_until = 0;
};

class Faults {
 public:
  // Null where the text has no rule; load_params() has checked it.
  static std::unique_ptr<Faults> make(std::string_view text,
                                      const std::vector<SoftDevice>& devices);

  // 0, or the errno value with which this call fails. A device that is lost refuses all.
  int on_call(uint32_t device, std::string_view call) NORIA_EXCLUDES(lock_);

  // Of the next queue pair that is made; null if no rule is about it.
  std::unique_ptr<QpFaults> for_next_qp(uint32_t device) NORIA_EXCLUDES(lock_);
  // A request of `bytes` begins at the port of a device; whether the service thread has news of it.
  bool on_request(uint32_t device, uint64_t bytes, Nanoseconds now) NORIA_EXCLUDES(lock_);
  // relaxed: who waits for a port looks again.
  bool is_down(uint32_t device) const {
    return ports_[device].is_down.load(std::memory_order_relaxed);
  }

  // Contexts that are told of their ports.
  void add_context(Context* context) NORIA_EXCLUDES(contexts_mutex_);
  void remove_context(Context* context) NORIA_EXCLUDES(contexts_mutex_);

  // Tells what happened to ports and brings them up again. When to look next.
  Nanoseconds tend(Engine& engine, Nanoseconds now) NORIA_EXCLUDES(lock_, contexts_mutex_);

 private:
  enum class News : uint8_t { none, down, lost };
  struct Port {
    std::atomic<bool> is_down{false}, is_lost{false};  // written under lock_
    News news = News::none;
    Nanoseconds down_until = kNever;
    FaultTally tally;
    std::vector<ArmedFault> armed;
  };
  Faults(SoftFaults plan, const std::vector<SoftDevice>& devices);
  std::vector<ArmedFault> arm(SoftFault::Object object, std::string_view name, uint64_t salt) const;
  News take_news(uint32_t device) NORIA_EXCLUDES(lock_);
  Nanoseconds come_up(uint32_t device, Nanoseconds now, bool* is_up) NORIA_EXCLUDES(lock_);
  void tell(uint32_t device, ibv_event_type type) NORIA_EXCLUDES(contexts_mutex_);

  const SoftFaults plan_;
  const size_t device_count_;
  SpinLock lock_;                        // a leaf
  std::array<Port, kMaxDevices> ports_;  // but for the atomics guarded by lock_
  struct Call {
    std::string_view name;
    uint64_t passed = 0;
    std::vector<ArmedFault> armed;
  };
  std::vector<Call> calls_ NORIA_GUARDED_BY(lock_);
  uint64_t qps_made_ NORIA_GUARDED_BY(lock_) = 0;
  Mutex contexts_mutex_;
  std::vector<Context*> contexts_ NORIA_GUARDED_BY(contexts_mutex_);
};

// take_step() of a queue pair with faults.
Outcome take_faulty_step(Qp& qp, Wqe& wqe);

}  // namespace noria::soft
