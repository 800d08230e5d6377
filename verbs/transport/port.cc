#include "verbs/transport/port.hpp"

#include "base/log.hpp"

namespace noria::transport {

Result<std::shared_ptr<Port>> Port::open(std::shared_ptr<const verbs::Provider> provider,
                                         const verbs::PortInfo& info) {
  NORIA_TRY_ASSIGN(verbs::OpenPort device, verbs::open_port(*provider, info));
  return std::shared_ptr<Port>(new Port(std::move(provider), device));
}

void Port::say_no_dmabuf(Status refusal) {
  if (has_said_no_dmabuf_.exchange(true, std::memory_order_relaxed)) return;  // a flag alone
  log(LogLevel::info, "%s registers no dmabuf (errno %d): taking device memory by its address",
      info_.device.c_str(), refusal.raw());
}

verbs::OpenPort Port::device() const {
  const MutexLock lock(mutex_);
  return device_;
}

void Port::bring_up_to_date() {
  take_events();
  if (!events_.take_change()) return;
  const MutexLock lock(mutex_);
  // As when it was opened first, until it answers.
  if (!verbs::ask_again(*provider_, &device_).is_ok()) events_.put_back_change();
}

Result<std::shared_ptr<Port>> OpenPorts::open(const verbs::PortInfo& info) {
  const MutexLock lock(mutex_);
  std::weak_ptr<Port>& known = ports_[{info.device, info.port}];
  if (std::shared_ptr<Port> port = known.lock(); port != nullptr) {
    port->bring_up_to_date();
    if (!port->events().is_device_lost()) return port;
  }
  NORIA_TRY_ASSIGN(std::shared_ptr<Port> port, Port::open(provider_, info));
  known = port;
  return port;
}

}  // namespace noria::transport
