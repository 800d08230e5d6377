#include "verbs/transport/port_events.hpp"

#include <algorithm>
#include <string>

#include "base/log.hpp"
#include "verbs/names.hpp"

namespace noria::transport {
namespace {

constexpr Nanoseconds kLinesPeriod = 10_s;
constexpr int kMostAtOnce = 1024;  // a device that reports without end holds nobody

}  // namespace

void PortEvents::take(const verbs::Api& api, ibv_context* context, const verbs::PortInfo& port) {
  if (!mutex_.try_lock()) return;
  for (int i = 0; i < kMostAtOnce && !is_device_lost(); ++i) {
    const auto event = verbs::take_event(api, context);
    if (!event) break;
    if (event->port == 0 || event->port == port.port) note(*event, port);
  }
  mutex_.unlock();
}

void PortEvents::note(const verbs::AsyncEvent& event, const verbs::PortInfo& port) {
  switch (verbs::cost_of(event.type)) {
    case verbs::EventCost::silence: return;
    case verbs::EventCost::nothing: break;
    case verbs::EventCost::path: put_back_change(); break;
    case verbs::EventCost::device: is_device_lost_.store(true, std::memory_order_relaxed); break;
    case verbs::EventCost::queue:
      broken_.push_back(event.object);
      is_any_broken_.store(true, std::memory_order_relaxed);
      break;
  }
  say(event, port);
}

void PortEvents::say(const verbs::AsyncEvent& event, const verbs::PortInfo& port) {
  const Nanoseconds now = now_ns();
  if (lines_ == 0 || now - lines_since_ > kLinesPeriod) {
    lines_ = 0;
    lines_since_ = now;
  }
  if (lines_ == kLinesAtOnce) {
    ++unsaid_;
    return;
  }
  ++lines_;
  const bool is_news = verbs::cost_of(event.type) == verbs::EventCost::path;
  const std::string before =
      unsaid_ != 0 ? ", and " + std::to_string(unsaid_) + " more before it" : "";
  unsaid_ = 0;
  log(is_news ? LogLevel::info : LogLevel::warn, "%s reported: %s (event %d)%s",
      event.port != 0 ? port.name().c_str() : port.device.c_str(), verbs::to_string(event.type),
      static_cast<int>(event.type), before.c_str());
}

bool PortEvents::is_broken(const void* queue) const {
  const MutexLock lock(mutex_);
  return std::find(broken_.begin(), broken_.end(), queue) != broken_.end();
}

void PortEvents::forget(const void* queue) {
  const MutexLock lock(mutex_);  // whoever is taking may be about to note it
  std::erase(broken_, queue);
  is_any_broken_.store(!broken_.empty(), std::memory_order_relaxed);
}

}  // namespace noria::transport
