#include "tests/support/thread_ranks.hpp"

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <optional>
#include <thread>

#include "bucketing/kernels.hpp"
#include "bucketing/ring.hpp"
#include "bucketing/segments.hpp"

namespace noria::test {

using bucketing::Collective;
using bucketing::Failure;

class ThreadRanks::Shared {
 public:
  explicit Shared(int32_t ranks)
      : size(static_cast<size_t>(ranks)), queues(size), given(size), wakes(size) {
    driver = std::thread([this] { drive(); });
  }
  ~Shared() {
    {
      std::lock_guard lock(mutex);
      is_over = true;
    }
    changed.notify_all();
    driver.join();
  }

  void submit(size_t rank, Collective& collective) {
    {
      std::lock_guard lock(mutex);
      queues[rank].push_back(&collective);
    }
    changed.notify_all();
  }

  bool wait(Collective& collective, Nanoseconds deadline, bucketing::Part* part) {
    std::unique_lock lock(mutex);
    const std::chrono::nanoseconds patience(deadline == kNever ? kNever : deadline - now_ns());
    changed.wait_for(lock, std::min<std::chrono::nanoseconds>(kBound, patience), [&] {
      return collective.is_done() || (part != nullptr && part->has_ended());
    });
    return collective.is_done();
  }

  void fail(const Failure& with) {
    {
      std::lock_guard lock(mutex);
      if (!failure) failure = with;
      has_failed.store(true, std::memory_order_release);
    }
    changed.notify_all();
  }

  bucketing::Outcome<std::vector<std::string>> gather(size_t rank, const std::string& what,
                                                      const std::string& bytes) {
    std::unique_lock lock(mutex);
    const unsigned round = gathers;
    if (came != 0 && what != gathered_what) return Failure{NORIA_E_ORDER, "ranks out of step"};
    gathered_what = what;
    given[rank] = rank == forged_rank && what == forged_what ? forged : bytes;
    if (++came == size) {
      gathered = given;
      came = 0;
      ++gathers;
      changed.notify_all();
      return gathered;
    }
    if (!changed.wait_for(lock, kBound, [&] { return gathers != round || failure; }))
      return Failure{NORIA_E_TIMEOUT, "a rank did not come"};
    if (gathers != round) return gathered;  // what failed since, failed later
    return *failure;
  }

  static constexpr std::chrono::seconds kBound{30};

  const size_t size;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::deque<Collective*>> queues;
  std::optional<Failure> failure;
  std::atomic<bool> has_failed{false};
  std::vector<std::string> given, gathered;
  std::string gathered_what;
  size_t forged_rank = SIZE_MAX;
  std::string forged_what, forged;
  size_t came = 0;
  unsigned gathers = 0;
  std::vector<std::atomic<uint64_t>> wakes;

 private:
  bool is_ready() const {
    for (const auto& queue : queues)
      if (queue.empty()) return false;
    return true;
  }

  void drive() {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [&] { return is_over || failure || is_ready(); });
      if (is_over) return;
      if (failure) {
        for (auto& queue : queues) finish_front(queue, *failure);
        changed.notify_all();
        changed.wait_for(lock, std::chrono::milliseconds(1));
        continue;
      }
      std::vector<Collective*> ranks;
      for (auto& queue : queues) ranks.push_back(queue.front());
      lock.unlock();
      run(ranks);
      lock.lock();
      for (auto& queue : queues) finish_front(queue, failure ? *failure : Failure{NORIA_OK, {}});
      changed.notify_all();
    }
  }

  static void finish_front(std::deque<Collective*>& queue, const Failure& with) {
    if (queue.empty()) return;
    queue.front()->failure = with;
    queue.front()->state.store(Collective::State::done, std::memory_order_release);
    queue.pop_front();
  }

  void run(const std::vector<Collective*>& ranks) {
    for (size_t s = 0; s < ranks[0]->segments.size(); ++s) {
      for (const Collective* rank : ranks)
        while (rank->pending != nullptr && rank->pending[s].load(std::memory_order_acquire) != 0) {
          if (has_failed.load(std::memory_order_acquire)) return;
          std::this_thread::yield();
        }
      const int64_t start = now_ns();
      const uint32_t part = ranks[0]->segments[s].part;
      add_segment(ranks, s);
      for (Collective* rank : ranks) {
        bucketing::Part& mine = rank->parts[part];
        if (mine.start_ns == 0) mine.start_ns = start;
        const int64_t now = now_ns();
        mine.wire_ns += now - start;
        const bool is_last = rank->segments[s + 1 < rank->segments.size() ? s + 1 : 0].part != part;
        if (is_last || s + 1 == rank->segments.size()) mine.set_end(now);
      }
      { std::lock_guard lock(mutex); }  // who saw no end waits by now
      changed.notify_all();
    }
  }

  void add_segment(const std::vector<Collective*>& ranks, size_t s) {
    const bucketing::Segment& segment = ranks[0]->segments[s];
    const bucketing::Part& shape = ranks[0]->parts[segment.part];
    const uint32_t element = bucketing::dtype_bytes(shape.dtype);
    for (uint32_t c = 0; c < size; ++c) {
      const bucketing::Chunk chunk =
          bucketing::chunk_of(segment, c, static_cast<uint32_t>(size), element);
      const uint64_t offset = chunk.first * element;
      const auto in = [&](size_t rank) { return ranks[rank]->parts[segment.part].in + offset; };
      std::vector<std::byte> sum(in((c + 1) % size), in((c + 1) % size) + chunk.count * element);
      for (size_t i = 2; i <= size; ++i) {
        if (i == size && shape.op == NORIA_AVG)
          bucketing::add_divide(shape.dtype, sum.data(), sum.data(), in((c + i) % size),
                                chunk.count, static_cast<uint32_t>(size));
        else
          bucketing::reduce(shape.dtype, shape.op, sum.data(), sum.data(), in((c + i) % size),
                            chunk.count);
      }
      for (Collective* rank : ranks)
        std::copy(sum.begin(), sum.end(), rank->parts[segment.part].out + offset);
    }
  }

  bool is_over = false;
  std::thread driver;
};

// Engine::create() and ControlPlane::join() have no argument for it.
struct SeatInTheMaking {
  ThreadRanks::Shared* shared = nullptr;
  size_t rank = 0;
};
constinit thread_local SeatInTheMaking in_the_making;

ThreadRanks::ThreadRanks(int32_t size) : shared_(std::make_unique<Shared>(size)) {
  for (int32_t rank = 0; rank < size; ++rank) {
    in_the_making = {shared_.get(), static_cast<size_t>(rank)};
    auto seat = std::make_unique<Seat>();
    seat->engine = bucketing::Engine::create(nullptr, nullptr, nullptr, 0, nullptr).value();
    seat->control = bucketing::ControlPlane::join({}).value();
    seat->host = {.rank = rank,
                  .size = size,
                  .engine = seat->engine.get(),
                  .control = size > 1 ? seat->control.get() : nullptr,
                  .open_steps = &seat->open_steps,
                  .start_timeout = 20_s,
                  .collective_timeout = 20_s};
    seats_.push_back(std::move(seat));
  }
}

ThreadRanks::~ThreadRanks() = default;

const bucketing::ReducerHost& ThreadRanks::host(int32_t rank) const {
  return seats_[static_cast<size_t>(rank)]->host;
}

void ThreadRanks::forge(int32_t rank, const std::string& what, const std::string& bytes) {
  const std::lock_guard lock(shared_->mutex);
  shared_->forged_rank = static_cast<size_t>(rank);
  shared_->forged_what = what;
  shared_->forged = bytes;
}

uint64_t ThreadRanks::wakes(int32_t rank) const {
  return shared_->wakes[static_cast<size_t>(rank)].load(std::memory_order_relaxed);
}

void ThreadRanks::run(const std::function<void(int32_t)>& body) {
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < static_cast<int32_t>(seats_.size()); ++rank)
    threads.emplace_back(body, rank);
  for (std::thread& thread : threads) thread.join();
}

}  // namespace noria::test

namespace noria::bucketing {

class Engine::State : public test::SeatInTheMaking {};
class ControlPlane::State : public test::SeatInTheMaking {};

Engine::Engine(std::unique_ptr<State> state) : state_(std::move(state)) {}
Engine::~Engine() = default;
Outcome<std::unique_ptr<Engine>> Engine::create(std::unique_ptr<transport::Domain>,
                                                std::unique_ptr<Ring>, ControlPlane*, Nanoseconds,
                                                const OpenSteps*) {
  auto state = std::make_unique<State>(State{{test::in_the_making}});
  return std::unique_ptr<Engine>(new Engine(std::move(state)));
}
void Engine::submit(Collective& collective, bool) {
  state_->shared->submit(state_->rank, collective);
}
void Engine::wake() { state_->shared->wakes[state_->rank].fetch_add(1, std::memory_order_relaxed); }
bool Engine::wait(Collective& collective, Nanoseconds deadline, Part* part) {
  return state_->shared->wait(collective, deadline, part);
}
void Engine::fail(const Failure& failure) { state_->shared->fail(failure); }
bool Engine::failed() const { return state_->shared->has_failed.load(std::memory_order_acquire); }
Failure Engine::failure() const {
  std::lock_guard lock(state_->shared->mutex);
  return *state_->shared->failure;
}
// Threads of one process need no connections, and so no ring.
Ring* Engine::ring() { return nullptr; }
class Ring::State {};
Ring::~Ring() = default;
Outcome<Ok> Ring::exchange_parts(Collective&, Nanoseconds) { return Ok{}; }
transport::Domain* Engine::domain() { return nullptr; }

ControlPlane::ControlPlane(std::unique_ptr<State> state) : state_(std::move(state)) {}
ControlPlane::~ControlPlane() = default;
Outcome<std::unique_ptr<ControlPlane>> ControlPlane::join(const Options&) {
  auto state = std::make_unique<State>(State{{test::in_the_making}});
  return std::unique_ptr<ControlPlane>(new ControlPlane(std::move(state)));
}
// What is linked beside asks; no rank of these dies.
bool ControlPlane::failed() const { return false; }
Failure ControlPlane::failure() const { return {NORIA_OK, {}}; }
Outcome<std::vector<std::string>> ControlPlane::all_gather(const std::string& what,
                                                           const std::string& bytes, Nanoseconds) {
  return state_->shared->gather(state_->rank, what, bytes);
}

}  // namespace noria::bucketing
