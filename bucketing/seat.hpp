// Seat and Sleeper: who drives, and how a driver sleeps without missing news.
//
// Seat: a lock that nobody waits for, but by take(). Whoever takes it drives; whoever does not,
// sleeps until its result is there. After leave() the leaver must look for work once more: a
// submitter that found the seat taken relies on that. No news is lost between the two:
//   submitter: count work (A), try_take() fails (B)       leaver: leave() (C), look at work (D)
// All four are sequentially consistent, so either A comes before D, and the leaver sees the work,
// or D before A, thus C before B, and try_take() had not failed.
//
// Sleeper: one sleeping thread and any number that wake it. wake() costs one atomic exchange, and a
// system call only if the thread sleeps. No wake-up is lost:
//   waker: publish news (A), exchange flag to false (B)   sleeper: exchange to true (C), look (D)
// Every write of the flag is an exchange, so B and C are ordered and part of one release sequence.
// If B comes first, C acquires what B released: D sees A, and the thread does not sleep. If C comes
// first, B or an earlier waker after C reads true and signals the descriptor, which stays readable.
// nudge() ends a sleep without any news, for whoever wants what the sleeper holds: it says so, then
// looks at the flag, and the sleeper sets the flag, then looks; all of it sequentially consistent.
//
// Threads: as said.
#pragma once

#include <sched.h>
#include <sys/eventfd.h>

#include <atomic>
#include <cstdint>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/fd.hpp"
#include "base/mutex.hpp"

namespace noria::bucketing {

// A driver that finds nothing to move looks on for so long, and sleeps then.
inline constexpr Nanoseconds kLooksOn = 200_us;

class NORIA_CAPABILITY("seat") Seat {
 public:
  bool try_take() NORIA_TRY_ACQUIRE(true) { return !is_taken_.exchange(true); }
  // Where others leave it after a few calls.
  void take() NORIA_ACQUIRE() {
    while (!try_take()) ::sched_yield();
  }
  void leave() NORIA_RELEASE() { is_taken_.store(false); }
  bool is_taken() const { return is_taken_.load(); }

 private:
  std::atomic<bool> is_taken_{false};  // sequentially consistent throughout: see above
};

// Takes a seat as take() does, and leaves it.
class NORIA_SCOPED_CAPABILITY SeatTaken {
 public:
  explicit SeatTaken(Seat& seat) NORIA_ACQUIRE(seat) : seat_(seat) { seat_.take(); }
  ~SeatTaken() NORIA_RELEASE() { seat_.leave(); }
  SeatTaken(const SeatTaken&) = delete;
  SeatTaken& operator=(const SeatTaken&) = delete;

 private:
  Seat& seat_;
};

class Sleeper {
 public:
  Sleeper() : event_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {}
  bool is_usable() const { return event_.is_open(); }

  // The thread that is going to sleep: after this it looks for news once more, then waits until
  // fd() is readable, then calls finish(), whether it slept or not.
  void prepare() { is_asleep_.exchange(true); }  // seq_cst: see nudge()
  // True when somebody called wake().
  bool finish() {
    const bool was_woken = !is_asleep_.exchange(false, std::memory_order_acq_rel);
    uint64_t count = 0;
    // Nothing to read is fine: a waker between its exchange and its signal makes the next sleep
    // end early, once.
    return (::read(event_.get(), &count, sizeof count) > 0 && count % kNudge != 0) || was_woken;
  }
  int fd() const { return event_.get(); }

  NORIA_HOT void wake() {
    if (is_asleep_.exchange(false, std::memory_order_acq_rel)) signal(kNews);
  }
  // Of this finish() does not tell.
  void nudge() {
    if (is_asleep_.load()) signal(kNudge);
  }

 private:
  // What the descriptor counts.
  static constexpr uint64_t kNews = 1, kNudge = uint64_t{1} << 32;

  NORIA_COLD void signal(uint64_t what) {
    // Fails only when the counter is full: the descriptor is readable then as well.
    if (::write(event_.get(), &what, sizeof what) < 0) return;
  }

  Fd event_;
  std::atomic<bool> is_asleep_{false};
};

}  // namespace noria::bucketing
