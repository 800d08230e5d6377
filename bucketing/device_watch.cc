#include "bucketing/device_watch.hpp"

#include <poll.h>

#include <algorithm>
#include <string>

#include "base/log.hpp"
#include "bucketing/control_state.hpp"
#include "bucketing/lost_rank.hpp"
#include "bucketing/pause.hpp"

namespace noria::bucketing {
namespace {

// Until the descriptor is readable; `limit` in ms, -1: none.
void sleep_on(int fd, int limit) {
  pollfd entry{fd, POLLIN, 0};
  // Any end of it is fine: the caller looks at everything.
  if (::poll(&entry, 1, limit) < 0) return;
}

}  // namespace

Outcome<std::unique_ptr<DeviceWatch>> DeviceWatch::create(const Options& options) {
  std::unique_ptr<DeviceWatch> made(new DeviceWatch(options));
  const std::string user = "the watch of " + options.nccl->device().name();
  if (!made->between_looks_.is_usable() || !options.nccl->operations().watch().is_usable())
    return no_descriptor(user);
  if (const int error = made->thread_.start([watch = made.get()] { watch->run(); }); error != 0)
    return no_thread(user, error);
  return made;
}

DeviceWatch::~DeviceWatch() { stop(); }

void DeviceWatch::stop() {
  if (!thread_.is_joinable()) return;
  stopping_.store(true, std::memory_order_release);  // pairs with acquire in run()
  options_.nccl->operations().watch().wake();
  between_looks_.wake();
  thread_.join();
}

bool DeviceWatch::wait_until_idle(Nanoseconds deadline) {
  stop();
  const Pause pause;
  while (true) {
    const auto seen = look();
    if (!seen) return false;
    if (seen->is_idle()) return true;
    if (now_ns() >= deadline) return false;
    pause.take();
  }
}

// ---- the thread ---------------------------------------------------------------------------------

void DeviceWatch::run() {
  Sleeper& sleeper = options_.nccl->operations().watch();
  const auto is_stopping = [this] { return stopping_.load(std::memory_order_acquire); };
  between_looks_.prepare();  // for good: only stop() wakes it
  while (!is_stopping()) {
    sleeper.prepare();
    if (ended_ == options_.nccl->operations().begun() && !is_stopping()) sleep_on(sleeper.fd(), -1);
    sleeper.finish();
    do {
      if (!watch()) return;
      if (last_.is_idle()) break;
      sleep_on(between_looks_.fd(), static_cast<int>(kLook / 1'000'000));
    } while (!is_stopping());
  }
}

bool DeviceWatch::watch() {
  const auto seen = look();
  const auto verdict = seen ? judge(*seen) : Outcome<Ok>(seen.failure());
  // NCCL's own finding comes before what follows of it.
  const auto found = options_.nccl->look();
  if (!found)
    give_up(found.failure());
  else if (!verdict)
    give_up(verdict.failure());
  if (!options_.engine->failed()) return true;
  const bool is_ours = options_.nccl->owner() == NcclCollective::Owner::noria;
  if (seen && seen->is_idle() && !is_ours) return true;
  options_.nccl->abort();
  return false;
}

Outcome<DeviceWatch::Sight> DeviceWatch::look() {
  DeviceOperations& operations = options_.nccl->operations();
  Sight seen;
  // First, so that `ended` is at most that.
  seen.launched = operations.launched_count();
  seen.begun = operations.begun();
  while (ended_ < seen.launched) {
    // Of one whose events were taken again, the one that took them says it: it ends later.
    if (const uint64_t begun = operations.begun(); begun - ended_ > DeviceOperations::kKept)
      ended_ = begun - DeviceOperations::kKept;
    const DeviceOperation& oldest = operations.at(ended_);
    NORIA_TRY_ASSIGN(const bool is_done, oldest.done.is_done());
    if (!is_done) {
      NORIA_TRY_ASSIGN(seen.is_oldest_ready, oldest.ready.is_done());
      break;
    }
    ++ended_;
  }
  seen.ended = ended_;
  seen.begun = std::max(seen.begun, ended_);
  return seen;
}

Outcome<Ok> DeviceWatch::judge(const Sight& seen) {
  const Nanoseconds now = now_ns();
  if (seen != last_ || seen.is_idle() || !seen.is_due()) {
    last_ = seen;
    still_since_ = now;
    has_warned_ = false;
    return Ok{};
  }
  const Nanoseconds still = now - still_since_;
  const Nanoseconds bound = options_.nccl->operations().bound_of(seen.ended);
  const std::string what = options_.nccl->device().name() + ": operation " +
                           std::to_string(seen.ended) + " of NCCL has made no progress for ";
  if (still >= bound)
    return Failure{NORIA_E_TIMEOUT,
                   what + seconds_text(still) +
                       ", though its inputs are there: another rank has not "
                       "launched its own, or NCCL's network stands still; "
                       "NCCL_DEBUG=INFO shows more; the bound is NORIA_TIMEOUT_MS, at the "
                       "start NORIA_START_TIMEOUT_MS, of a reducer's step its step_timeout_ms"};
  if (still >= bound / 2 && !has_warned_) {
    has_warned_ = true;
    const std::string warning = what + seconds_text(still) + " of " + seconds_text(bound);
    if (options_.control != nullptr)
      options_.control->ask_around(warning);
    else
      log(LogLevel::warn, "%s", warning.c_str());
  }
  return Ok{};
}

// As others fail too by what one of them found, rank 0's word counts.
void DeviceWatch::give_up(const Failure& failure) {
  if (options_.control != nullptr) await_who_was_lost(*options_.engine, failure);
  if (options_.engine->failed()) return;
  const std::string who =
      options_.control != nullptr ? "rank " + std::to_string(options_.control->rank()) + ": " : "";
  options_.engine->fail({failure.code, who + failure.text});
}

}  // namespace noria::bucketing
