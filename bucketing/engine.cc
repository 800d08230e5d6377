#include "bucketing/engine.hpp"

#include <poll.h>
#include <sched.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <optional>
#include <utility>

#include "base/log.hpp"
#include "base/own_thread.hpp"
#include "base/relax.hpp"
#include "bucketing/bystanders.hpp"
#include "bucketing/control_state.hpp"
#include "bucketing/kernels.hpp"
#include "bucketing/seat.hpp"

namespace noria::bucketing {
namespace {

// A neighbour's credit is a plain RDMA write: it lands without a completion, so that a driver that
// waits for one must look by itself. It sleeps for a quarter of the time it has waited already, so
// that it adds a quarter to a wait at most and looks 200 times a second at most.
constexpr Nanoseconds kShortestNap = 50_us;
constexpr Nanoseconds kLongestNap = 5_ms;

// An answer of a neighbour that runs comes within kSpin. One that slept needs its wake-up first,
// 40 to 100 us: whoever sleeps before that is over is itself asleep when the answer comes, and two
// ranks keep each other slow for good. So the driver goes on looking until kLooksOn, but lets
// others have the core. In a steady stream of calls neither matters (64 KiB: 12 us either way).
constexpr Nanoseconds kSpin = 30_us;

// Nobody tells of a part's end but to who drives: others look. Short beside a bucket's copy, long
// beside a look.
constexpr Nanoseconds kPartLook = 1_ms;

// poll(2) on one descriptor until a monotonic point in time.
void sleep_on(int fd, Nanoseconds deadline) {
  pollfd entry{fd, POLLIN, 0};
  const Nanoseconds left = std::max<Nanoseconds>(deadline - now_ns(), 0);
  const timespec limit{.tv_sec = left / 1'000'000'000, .tv_nsec = left % 1'000'000'000};
  // Any end of it is fine: the caller looks at everything.
  if (::ppoll(&entry, 1, deadline == kNever ? nullptr : &limit, nullptr) < 0) return;
}

// One rank: the reduction of one value is the value.
void copy_parts(Collective& collective) {
  for (Part& part : collective.parts) {
    part.start_ns = now_ns();
    const uint64_t bytes = part.count * dtype_bytes(part.dtype);
    if (part.in != part.out && part.in != nullptr && bytes > 0)
      std::memmove(part.out, part.in, bytes);
    const Nanoseconds now = now_ns();
    part.wire_ns = now - part.start_ns;
    part.set_end(now);
  }
}

// What a thread drives for.
struct Goal {
  Collective& collective;
  Part* part = nullptr;  // null: the end of it all

  bool is_reached() const { return collective.is_done() || (part != nullptr && part->has_ended()); }
};

}  // namespace

class Engine::State {
 public:
  State(std::unique_ptr<transport::Domain> domain, std::unique_ptr<Ring> ring,
        ControlPlane* control, Nanoseconds timeout, const OpenSteps* steps)
      : domain_(std::move(domain)),
        ring_(std::move(ring)),
        control_(control),
        timeout_(timeout),
        steps_(steps) {}
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  Outcome<Ok> start();
  void stop();
  void submit(Collective& collective, bool wake_driver);
  NORIA_HOT void wake();
  bool wait(Collective& collective, Nanoseconds deadline, Part* part);
  Outcome<bool> try_run(Kind kind, const Part* part);
  void fail(const Failure& failure);
  // acquire: pairs with adopt(); failure_ itself is read under the mutex.
  bool failed() const { return failed_.load(std::memory_order_acquire); }
  Failure failure();

  Ring* ring() { return ring_.get(); }
  transport::Domain* domain() { return domain_.get(); }

 private:
  void run();
  // Until the goal is reached, nothing is left to do, or the deadline has passed. Without a goal:
  // until somebody waits.
  void drive(const Goal* goal, Nanoseconds deadline) NORIA_REQUIRES(seat_);
  bool step() NORIA_REQUIRES(seat_);
  Ring::Progress advance() NORIA_REQUIRES(seat_);
  bool start_next() NORIA_REQUIRES(seat_);
  void begin(Collective& collective) NORIA_REQUIRES(seat_);
  void sleep(const Goal* goal, Nanoseconds deadline) NORIA_REQUIRES(seat_);
  bool is_overdue(Nanoseconds now) NORIA_REQUIRES(seat_);
  NORIA_COLD std::string waits_for() NORIA_REQUIRES(seat_);
  NORIA_COLD void warn(Nanoseconds idle) NORIA_REQUIRES(seat_);
  std::string owes() const;
  Nanoseconds bound() NORIA_REQUIRES(seat_);
  void leave_seat() NORIA_RELEASE(seat_);
  void hand_on();
  bool is_to_leave(const Goal* goal) const;
  void finish(Collective& collective) NORIA_REQUIRES(seat_);
  void fail_all() NORIA_REQUIRES(seat_);
  void give_up(Failure failure) NORIA_REQUIRES(seat_);
  void adopt(const Failure& failure);
  void sleep_beside(const Goal& goal, Nanoseconds deadline);
  bool has_work() const { return work_.load() > 0; }        // seq_cst: see Seat
  bool has_waiters() const { return waiting_.load() > 0; }  // likewise
  bool is_for_thread() const { return has_work() && !has_waiters(); }

  const std::unique_ptr<transport::Domain> domain_;
  const std::unique_ptr<Ring> ring_;
  ControlPlane* const control_;
  const Nanoseconds timeout_;
  const OpenSteps* const steps_;  // null: nobody says

  Seat seat_;
  Collective* current_ NORIA_GUARDED_BY(seat_) = nullptr;
  bool is_closed_ NORIA_GUARDED_BY(seat_) = false;
  Collective own_ NORIA_GUARDED_BY(seat_);  // of try_run(); nobody else knows it
  // Since when nothing moves; 0 while something does. So the clock is read on idle turns only.
  Nanoseconds idle_since_ NORIA_GUARDED_BY(seat_) = 0;
  bool has_warned_ NORIA_GUARDED_BY(seat_) = false;  // of the current one

  Mutex mutex_;
  std::deque<Collective*> queue_ NORIA_GUARDED_BY(mutex_);
  std::optional<Failure> failure_ NORIA_GUARDED_BY(mutex_);
  std::atomic<bool> failed_{false};
  std::atomic<uint32_t> work_{0};  // queued or under way; seq_cst: see Seat
  std::atomic<bool> stopping_{false};

  Sleeper driver_;  // whoever has the seat
  Sleeper idle_;    // the communication thread without it

  std::atomic<uint32_t> waiting_{0};  // threads in wait(); seq_cst: see Seat
  Bystanders bystanders_;             // of them, who sleep

  OwnThread thread_;  // last: it uses all of the above
};

// ---- the calls ----------------------------------------------------------------------------------

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::~Engine() = default;
void Engine::stop() { state_->stop(); }
void Engine::submit(Collective& collective, bool wake_driver) {
  state_->submit(collective, wake_driver);
}
void Engine::wake() { state_->wake(); }
Outcome<bool> Engine::try_run(Kind kind, const Part* part) { return state_->try_run(kind, part); }
bool Engine::wait(Collective& collective, Nanoseconds deadline, Part* part) {
  return state_->wait(collective, deadline, part);
}
void Engine::fail(const Failure& failure) { state_->fail(failure); }
bool Engine::failed() const { return state_->failed(); }
Failure Engine::failure() const { return state_->failure(); }
Ring* Engine::ring() { return state_->ring(); }
transport::Domain* Engine::domain() { return state_->domain(); }

Outcome<std::unique_ptr<Engine>> Engine::create(std::unique_ptr<transport::Domain> domain,
                                                std::unique_ptr<Ring> ring, ControlPlane* control,
                                                Nanoseconds timeout, const OpenSteps* steps) {
  auto state = std::make_unique<State>(std::move(domain), std::move(ring), control, timeout, steps);
  NORIA_TRY(state->start());
  return std::unique_ptr<Engine>(new Engine(std::move(state)));
}

Outcome<Ok> Engine::State::start() {
  if (!driver_.is_usable() || !idle_.is_usable()) return no_descriptor("the engine");
  if (const int error = thread_.start([this] { run(); }); error != 0)
    return no_thread("the engine", error);
  if (control_ != nullptr) {
    control_->on_failure([this] { adopt(control_->failure()); });
    control_->on_question([this] { return owes(); });
  }
  return Ok{};
}

Engine::State::~State() { stop(); }

void Engine::State::stop() {
  if (!thread_.is_joinable()) return;
  if (control_ != nullptr) {
    control_->on_failure(nullptr);
    control_->on_question(nullptr);
  }
  adopt({NORIA_E_ABORTED, "the communicator was destroyed"});
  stopping_.store(true, std::memory_order_release);  // pairs with acquire in run()
  idle_.wake();
  thread_.join();
}

void Engine::State::submit(Collective& collective, bool wake_driver) {
  {
    const MutexLock lock(mutex_);
    if (!failure_ && ring_ == nullptr && collective.pending == nullptr && queue_.empty()) {
      copy_parts(collective);
      collective.state.store(Collective::State::done, std::memory_order_release);
      return;
    }
    if (failure_) {
      collective.failure = *failure_;
      collective.state.store(Collective::State::done, std::memory_order_release);
      return;
    }
    queue_.push_back(&collective);
    work_.fetch_add(1);
  }
  if (wake_driver) wake();
}

void Engine::State::wake() {
  driver_.wake();
  // Who has the seat now looks for work after leaving it, and wakes the thread then.
  if (!seat_.is_taken()) idle_.wake();
}

Outcome<bool> Engine::State::try_run(Kind kind, const Part* part) {
  // Behind what is queued, it would have to queue as well.
  if (ring_ == nullptr || has_work() || failed() || !seat_.try_take()) return false;
  own_.kind = kind;
  own_.parts.clear();
  if (part != nullptr) own_.parts.push_back(*part);
  own_.failure.code = NORIA_OK;
  begin(own_);
  const Goal goal{own_};
  drive(&goal, kNever);
  Outcome<bool> outcome = true;
  if (own_.failure.code != NORIA_OK) outcome = own_.failure;
  leave_seat();
  return outcome;
}

bool Engine::State::wait(Collective& collective, Nanoseconds deadline, Part* part) {
  const Goal goal{collective, part};
  if (goal.is_reached()) return collective.is_done();
  waiting_.fetch_add(1);
  // The communication thread may sleep with the seat. Awake it leaves it to who waits, and does not
  // sleep again while somebody does; whoever else has it drives for itself.
  driver_.nudge();
  while (!goal.is_reached() && (deadline == kNever || now_ns() < deadline)) {
    if (seat_.try_take()) {
      drive(&goal, deadline);
      leave_seat();
    } else {
      sleep_beside(goal, deadline);
    }
  }
  waiting_.fetch_sub(1);
  hand_on();
  return collective.is_done();
}

// Somebody else drives, until it has reached its own goal or leaves the seat to us. finish() and
// hand_on() tell us.
void Engine::State::sleep_beside(const Goal& goal, Nanoseconds deadline) {
  const auto is_over = [&] { return goal.is_reached() || !seat_.is_taken(); };
  const Nanoseconds start = now_ns();
  // Yields: on a full machine it may be this very core that whoever drives is waiting for.
  while (!is_over() && now_ns() < start + kSpin) ::sched_yield();
  if (goal.part != nullptr) deadline = std::min(deadline, start + kPartLook);
  bystanders_.sleep_until(is_over, deadline);
}

// ---- driving ------------------------------------------------------------------------------------

void Engine::State::run() {
  while (!stopping_.load(std::memory_order_acquire)) {
    if (is_for_thread() && seat_.try_take()) {
      drive(nullptr, kNever);
      leave_seat();
      continue;
    }
    idle_.prepare();
    const bool must_look =
        stopping_.load(std::memory_order_acquire) || (is_for_thread() && !seat_.is_taken());
    if (!must_look) sleep_on(idle_.fd(), kNever);
    idle_.finish();
  }
  if (seat_.try_take()) {  // no call is under way any more
    fail_all();
    seat_.leave();
  }
}

void Engine::State::leave_seat() {
  seat_.leave();
  hand_on();
}

// To those who wait, and where nobody does to the communication thread.
void Engine::State::hand_on() {
  if (is_for_thread()) return idle_.wake();
  bystanders_.tell();
}

void Engine::State::drive(const Goal* goal, Nanoseconds deadline) {
  while (true) {
    if (failed()) return fail_all();
    if (is_to_leave(goal)) return;
    if (current_ == nullptr && !start_next()) return;
    if (step()) {
      if (deadline != kNever && now_ns() >= deadline) return;
      continue;
    }

    const Nanoseconds now = now_ns();
    if (idle_since_ == 0) idle_since_ = now;
    if (now - idle_since_ >= bound() / 2 && !has_warned_) warn(now - idle_since_);
    if (now >= deadline) return;
    if (is_overdue(now)) {
      give_up({NORIA_E_TIMEOUT, std::string(name_of(*current_)) + " made no progress for " +
                                    seconds_text(bound()) + ", waiting for " + waits_for() +
                                    ": look what that rank is doing, or raise NORIA_TIMEOUT_MS"});
    } else if (now - idle_since_ < kSpin) {
      relax();
    } else if (now - idle_since_ < kLooksOn) {
      ::sched_yield();
    } else {
      sleep(goal, deadline);
    }
  }
}

bool Engine::State::is_to_leave(const Goal* goal) const {
  return goal != nullptr ? goal->is_reached() : has_waiters();
}

// True when something moved.
bool Engine::State::step() {
  switch (advance()) {
    case Ring::Progress::none: return false;
    case Ring::Progress::some: break;
    case Ring::Progress::finished: finish(*std::exchange(current_, nullptr)); break;
    case Ring::Progress::failed: give_up(ring_->failure()); break;
  }
  idle_since_ = 0;
  return true;
}

Ring::Progress Engine::State::advance() {
  if (ring_ != nullptr) return ring_->advance();
  if (!is_ready(*current_)) return Ring::Progress::none;
  copy_parts(*current_);
  return Ring::Progress::finished;
}

bool Engine::State::start_next() {
  Collective* next = nullptr;
  {
    const MutexLock lock(mutex_);
    if (queue_.empty()) return false;
    next = queue_.front();
    queue_.pop_front();
  }
  begin(*next);
  return true;
}

inline void Engine::State::begin(Collective& collective) {
  current_ = &collective;
  idle_since_ = 0;
  has_warned_ = false;
  // relaxed: nobody acts on `running` alone.
  collective.state.store(Collective::State::running, std::memory_order_relaxed);
  if (ring_ != nullptr) ring_->start(collective);
}

void Engine::State::sleep(const Goal* goal, Nanoseconds deadline) {
  driver_.prepare();
  if (!failed() && !is_to_leave(goal) && !step()) {
    const Nanoseconds now = now_ns();
    const Nanoseconds nap = std::clamp((now - idle_since_) / 4, kShortestNap, kLongestNap);
    const Nanoseconds until = std::min(deadline, now + nap);
    if (domain_ == nullptr) {
      sleep_on(driver_.fd(), until);
    } else if (const Status status = domain_->arm_and_wait(until, driver_.fd()); !status.is_ok()) {
      give_up({to_noria_status(status.code()),
               "the device's completion channel failed: " + std::string(to_string(status.code()))});
    }
  }
  // News from this rank's own side is progress: what the neighbours owe counts from here.
  if (driver_.finish()) idle_since_ = 0;
}

Nanoseconds Engine::State::bound() {
  return current_ != nullptr && current_->timeout_ns > 0 ? current_->timeout_ns : timeout_;
}

bool Engine::State::is_overdue(Nanoseconds now) {
  if (now - idle_since_ < bound()) return false;
  if (owes_nothing(*current_)) return true;
  idle_since_ = now;  // this rank's own gradients are not there yet: nobody owes anything
  return false;
}

std::string Engine::State::waits_for() {
  return ring_ != nullptr ? ring_->waiting_for() : "this rank";
}

// Once a collective: a step that goes on may stand still again, and the line would be the same.
void Engine::State::warn(Nanoseconds idle) {
  has_warned_ = true;
  const std::string what = std::string(name_of(*current_)) + " has made no progress for " +
                           seconds_text(idle) + " of " + seconds_text(bound()) + ", waiting for " +
                           waits_for();
  if (control_ != nullptr) return control_->ask_around(what);
  const std::string own = owes();
  log(LogLevel::warn, "%s%s%s", what.c_str(), own.empty() ? "" : "; this rank ", own.c_str());
}

std::string Engine::State::owes() const {
  if (steps_ != nullptr)
    if (auto step = steps_->owes()) return std::move(*step);
  // Who drives a call of its own has queued none.
  return has_work() || seat_.is_taken() ? "" : "has no collective under way";
}

// ---- ends ---------------------------------------------------------------------------------------

void Engine::State::finish(Collective& collective) {
  // release: results and times. The maker may free it from here on.
  collective.state.store(Collective::State::done, std::memory_order_release);
  if (&collective == &own_) return;
  work_.fetch_sub(1);
  bystanders_.tell();
}

// The ring is out of step, or gone: nothing can follow. What this rank saw may be the consequence
// of another's end, so that rank 0's word counts.
void Engine::State::give_up(Failure failure) {
  if (control_ != nullptr) {
    failure.text = "rank " + std::to_string(control_->rank()) + ": " + failure.text;
    failure = control_->settle(failure);
  }
  adopt(failure);
}

void Engine::State::adopt(const Failure& failure) {
  {
    const MutexLock lock(mutex_);
    if (!failure_) failure_ = failure;
    failed_.store(true, std::memory_order_release);  // pairs with failed()
  }
  driver_.wake();
  idle_.wake();
}

void Engine::State::fail_all() {
  if (!is_closed_ && ring_ != nullptr) ring_->close();
  is_closed_ = true;
  std::deque<Collective*> lost;
  Failure failure;
  {
    const MutexLock lock(mutex_);
    lost.swap(queue_);
    failure = *failure_;
  }
  if (current_ != nullptr) lost.push_front(std::exchange(current_, nullptr));
  for (Collective* collective : lost) {
    collective->failure = failure;
    finish(*collective);
  }
}

void Engine::State::fail(const Failure& failure) {
  if (control_ == nullptr) return adopt(failure);
  control_->announce(failure);
  if (control_->failed()) adopt(control_->failure());
}

Failure Engine::State::failure() {
  const MutexLock lock(mutex_);
  return failure_ ? *failure_ : Failure{NORIA_OK, {}};
}

}  // namespace noria::bucketing
