// A ring and a domain without a network, for tests of the engine: the linker takes these instead of
// the real ones. A test grants steps; each step moves one segment, or one of kSteps of a collective
// without segments. With no step granted the ring waits, as for a neighbour.
//
// Threads: grant() and the counters any thread; the rest as ring.hpp and domain.hpp.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <set>
#include <thread>

#include "bucketing/engine.hpp"
#include "bucketing/seat.hpp"

namespace noria::test {

struct FakeRing {
  static constexpr uint64_t kSteps = 3;

  std::atomic<int64_t> granted{0};
  std::atomic<bool> has_news{false};            // granted since the ring last looked
  std::atomic<bool> sleeps_until_woken{false};  // no nap ends by itself: a lost wake-up hangs
  std::atomic<bool> must_fail{false};
  std::atomic<bool> is_endless{false};  // moves, and comes to no end
  std::atomic<bool> is_closed{false};
  std::atomic<uint64_t> advances{0};
  std::atomic<uint64_t> sleeps{0};
  bucketing::Sleeper device;  // the completion channel

  void grant(int64_t steps) {
    granted.fetch_add(steps, std::memory_order_acq_rel);
    has_news.store(true, std::memory_order_release);
    device.wake();
  }
  void note_driver() {
    const std::lock_guard lock(mutex);
    drivers.insert(std::this_thread::get_id());
  }
  std::set<std::thread::id> who_drove() {
    const std::lock_guard lock(mutex);
    return std::exchange(drivers, {});
  }

  // Of the current collective; the driver's.
  bucketing::Collective* current = nullptr;
  uint64_t done_steps = 0;
  bucketing::Failure failure{NORIA_OK, {}};

  std::mutex mutex;
  std::set<std::thread::id> drivers;
};

// The one that the next make_fake_engine() uses; lives until the next call.
FakeRing& fake_ring();
std::unique_ptr<bucketing::Engine> make_fake_engine(Nanoseconds timeout,
                                                    bucketing::ControlPlane* control = nullptr);

}  // namespace noria::test
