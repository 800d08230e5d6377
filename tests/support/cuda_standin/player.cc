// The thread that plays the devices.
#include <algorithm>

#include "tests/support/cuda_standin/collective_launch.hpp"
#include "tests/support/cuda_standin/machine.hpp"

namespace noria::standin {

void Machine::start() {
  if (is_started_) return;
  is_started_ = true;
  std::thread([this] { play(); }).detach();
}

void Machine::poke() { work_.notify_one(); }

bool Machine::may_play() const { return !is_lazy_ || waiting_ > 0 || steps_ > 0; }

void Machine::play() {
  std::unique_lock lock(mutex);
  for (;;) {
    const bool has_work =
        std::any_of(streams.begin(), streams.end(),
                    [this](const std::unique_ptr<Stream>& stream) { return is_ready(*stream); });
    if (!has_work) {
      work_.wait(lock);
      continue;
    }
    if (!may_play()) {
      // A device that nobody asks goes on as well, only late.
      if (work_.wait_for(lock, std::chrono::milliseconds(1)) == std::cv_status::timeout) ++steps_;
      continue;
    }
    if (steps_ > 0) --steps_;
    run(pick(), &lock);
  }
}

bool Machine::is_ready(const Stream& stream) const {
  if (stream.queue.empty() || stream.is_held || holds_all) return false;
  const Operation& head = *stream.queue.front();
  if (!std::all_of(head.after.begin(), head.after.end(),
                   [](const OperationRef& before) { return before->is_done; }))
    return false;
  return head.collective == nullptr || !head.collective->is_stuck();
}

OperationRef Machine::pick() {
  std::vector<Stream*> ready;
  std::vector<Stream*> slow;
  for (const std::unique_ptr<Stream>& stream : streams)
    if (is_ready(*stream)) (stream->is_slow ? slow : ready).push_back(stream.get());
  const std::vector<Stream*>& choice = ready.empty() ? slow : ready;
  return choice[random() % choice.size()]->queue.front();
}

void Machine::begin(Operation* operation) {
  Stream& stream = *operation->stream;
  VectorClock clock = stream.clock;
  clock.join(operation->issued);
  for (const OperationRef& before : operation->after) clock.join(before->clock);
  clock.set(stream.clock_id, clock.at(stream.clock_id) + 1);
  stream.clock = clock;
  operation->clock = std::move(clock);
}

void Machine::run(const OperationRef& operation, std::unique_lock<std::mutex>* lock) {
  if (operation->collective != nullptr) {
    CollectiveLaunch& launch = *operation->collective;
    if (!launch.has_arrived) begin(operation.get());
    if (!launch.has_arrived && !launch.is_aborted) return arrive(operation);
    return finish(operation);
  }
  begin(operation.get());
  const bool is_allowed = operation->touches == nullptr || check(*operation, operation->touches());
  if (is_allowed && operation->act != nullptr) {
    is_playing_ = true;
    lock->unlock();
    operation->act();
    lock->lock();
    is_playing_ = false;
  }
  finish(operation);
}

void Machine::finish(const OperationRef& operation) {
  operation->ended = std::chrono::steady_clock::now();
  operation->is_done = true;
  operation->after.clear();
  operation->touches = nullptr;
  operation->act = nullptr;
  operation->stream->queue.pop_front();
  changed.notify_all();
}

bool Machine::wait_all(std::unique_lock<std::mutex>* lock) {
  ++waiting_;
  poke();
  const auto is_idle = [this] {
    return !is_playing_ &&
           std::none_of(streams.begin(), streams.end(),
                        [this](const std::unique_ptr<Stream>& s) { return is_ready(*s); });
  };
  // What is done is told by `changed`, and only that leads here.
  const bool is_over = changed.wait_for(*lock, std::chrono::minutes(1), is_idle);
  --waiting_;
  return is_over && std::all_of(streams.begin(), streams.end(),
                                [](const std::unique_ptr<Stream>& s) { return s->queue.empty(); });
}

}  // namespace noria::standin
