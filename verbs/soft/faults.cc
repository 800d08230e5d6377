#include "verbs/soft/faults.hpp"

#include <errno.h>

#include <algorithm>
#include <string>
#include <utility>

#include "base/log.hpp"
#include "verbs/soft/async_events.hpp"
#include "verbs/soft/completion_queue.hpp"
#include "verbs/soft/device.hpp"
#include "verbs/soft/device_time.hpp"
#include "verbs/soft/engine.hpp"
#include "verbs/soft/set_up_qp.hpp"

namespace noria::soft {

using Object = SoftFault::Object;
using Action = SoftFault::Action;

std::unique_ptr<Faults> Faults::make(std::string_view text,
                                     const std::vector<SoftDevice>& devices) {
  SoftFaults plan = parse_soft_faults(text).value();
  if (plan.rules.empty()) return nullptr;
  log(LogLevel::warn, "software HCA: NORIA_SOFT_FAULTS is set; what fails may be meant to");
  return std::unique_ptr<Faults>(new Faults(std::move(plan), devices));
}

Faults::Faults(SoftFaults plan, const std::vector<SoftDevice>& devices)
    : plan_(std::move(plan)), device_count_(devices.size()) {
  for (size_t i = 0; i < device_count_; ++i)
    ports_[i].armed = arm(Object::port, devices[i].name, i);
  for (const std::string_view name : detail::kFaultCalls)
    if (auto armed = arm(Object::call, name, 0); !armed.empty())
      calls_.push_back({name, 0, std::move(armed)});
}

// The rules about one object. `salt` tells objects apart that the same rule concerns.
std::vector<ArmedFault> Faults::arm(Object object, std::string_view name, uint64_t salt) const {
  std::vector<ArmedFault> armed;
  for (size_t i = 0; i < plan_.rules.size(); ++i) {
    const SoftFault& rule = plan_.rules[i];
    if (rule.object == object && rule.concerns(name))
      armed.push_back({&rule, FaultSchedule(rule, plan_.seed + (i << 40) + (salt << 20))});
  }
  return armed;
}

int Faults::on_call(uint32_t device, std::string_view call) {
  if (ports_[device].is_lost.load(std::memory_order_relaxed))
    return EIO;  // a call more is harmless
  SpinGuard guard(lock_);
  for (Call& each : calls_) {
    if (each.name != call) continue;
    const uint64_t passed = each.passed++;
    int code = 0;
    for (ArmedFault& fault : each.armed)
      if (fault.schedule.meets(passed) && code == 0) code = fault.rule->code;
    return code;
  }
  return 0;
}

std::unique_ptr<QpFaults> Faults::for_next_qp(uint32_t device) {
  SpinGuard guard(lock_);
  const uint64_t number = ++qps_made_;
  std::vector<ArmedFault> armed = arm(Object::qp, std::to_string(number), number);
  if (armed.empty() && ports_[device].armed.empty()) return nullptr;
  return std::make_unique<QpFaults>(QpFaults{.device = device, .armed = std::move(armed)});
}

bool Faults::on_request(uint32_t device, uint64_t bytes, Nanoseconds now) {
  Port& port = ports_[device];
  SpinGuard guard(lock_);
  const FaultTally before = port.tally;
  port.tally.add(bytes);
  for (ArmedFault& fault : port.armed) {
    if (!fault.schedule.meets(before.of(*fault.rule))) continue;
    const bool is_lost = fault.rule->action == Action::fatal;
    const Nanoseconds length = is_lost ? kNever : fault.rule->duration_ns;
    const Nanoseconds until = length == kNever ? kNever : now + length;
    const bool was_down = port.is_down.exchange(true, std::memory_order_relaxed);
    port.down_until = was_down ? std::max(port.down_until, until) : until;
    if (is_lost && !port.is_lost.exchange(true, std::memory_order_relaxed)) port.news = News::lost;
    if (!was_down && !is_lost) port.news = News::down;
  }
  return port.news != News::none;
}

void Faults::add_context(Context* context) {
  MutexLock lock(contexts_mutex_);
  contexts_.push_back(context);
}

void Faults::remove_context(Context* context) {
  MutexLock lock(contexts_mutex_);
  std::erase(contexts_, context);
}

void Faults::tell(uint32_t device, ibv_event_type type) {
  MutexLock lock(contexts_mutex_);
  for (Context* context : contexts_)
    if (context->device == device) raise_event(&context->context, type);
}

Faults::News Faults::take_news(uint32_t device) {
  SpinGuard guard(lock_);
  return std::exchange(ports_[device].news, News::none);
}

// When a port that is down comes up, kNever if it does not; `*is_up` if that is now.
Nanoseconds Faults::come_up(uint32_t device, Nanoseconds now, bool* is_up) {
  SpinGuard guard(lock_);
  Port& port = ports_[device];
  if (!port.is_down.load(std::memory_order_relaxed)) return kNever;
  *is_up = port.down_until <= now;
  if (!*is_up) return port.down_until;
  port.is_down.store(false, std::memory_order_relaxed);
  return kNever;
}

namespace {

template <class Act>
void for_each_qp_of(Engine& engine, uint32_t device, Act act) {
  engine.for_each_qp([&](Qp& qp) {
    if (device_of(qp.pd_number) == device) act(qp);
  });
}

void end_queue(Qp& qp) {
  SpinGuard guard(qp.receives_to().list);
  enter_error(qp);
}

}  // namespace

Nanoseconds Faults::tend(Engine& engine, Nanoseconds now) {
  Nanoseconds next = kNever;
  for (uint32_t device = 0; device < device_count_; ++device) {
    const News news = take_news(device);
    if (news != News::none) for_each_qp_of(engine, device, show_port_state);
    if (news == News::down) tell(device, IBV_EVENT_PORT_ERR);
    if (news == News::lost) {
      for_each_qp_of(engine, device, end_queue);
      tell(device, IBV_EVENT_DEVICE_FATAL);
    }
    bool is_up = false;
    next = std::min(next, come_up(device, now, &is_up));
    if (!is_up) continue;
    for_each_qp_of(engine, device, show_port_state);
    tell(device, IBV_EVENT_PORT_ACTIVE);
  }
  return next;
}

namespace {

// A request begins: what it meets. SUCCESS where it does not fail at once.
ibv_wc_status begin_request(Qp& qp, QpFaults& faults, const Wqe& wqe, Nanoseconds now) {
  if (qp.engine.faults()->on_request(faults.device, wqe.bytes, now))
    qp.engine.request_service(Engine::kAtOnce);
  const FaultTally before = faults.tally;
  faults.tally.add(wqe.bytes);
  ibv_wc_status status = IBV_WC_SUCCESS;
  for (ArmedFault& fault : faults.armed) {
    if (!fault.schedule.meets(before.of(*fault.rule))) continue;
    const SoftFault& rule = *fault.rule;
    if (rule.action == Action::fail) {
      status = static_cast<ibv_wc_status>(rule.code);
      continue;
    }
    Nanoseconds& until = rule.action == Action::lose ? faults.lost_until : faults.mute_until;
    until = std::max(until, now + rule.duration_ns);
  }
  return status;
}

}  // namespace

Outcome take_faulty_step(Qp& qp, Wqe& wqe) {
  QpFaults& faults = *qp.faults;
  const Nanoseconds now = device_now();
  const uint64_t number = qp.executed + 1;
  if (faults.counted < number) {
    faults.counted = number;
    if (const ibv_wc_status status = begin_request(qp, faults, wqe, now); status != IBV_WC_SUCCESS)
      return fail(status);
  }
  const bool is_down = qp.engine.faults()->is_down(faults.device);
  const bool is_mute = is_down || now < faults.mute_until;
  if (faults.unanswered == number)
    return is_mute ? wait_for(qp, wqe, Wait::target) : Outcome{Step::finished};
  // An answer that would bring bytes and is lost brings none.
  if (is_down || now < faults.lost_until || (is_mute && wqe.is_answered()))
    return wait_for(qp, wqe, Wait::target);
  const Outcome outcome = take_step(qp, wqe);
  if (outcome.step != Step::finished || !is_mute) return outcome;
  faults.unanswered = number;
  wake_target(qp);
  return wait_for(qp, wqe, Wait::target);
}

}  // namespace noria::soft
