#include "verbs/transport/port.hpp"

namespace noria::transport {

Result<std::shared_ptr<Port>> Port::open(std::shared_ptr<const verbs::Provider> provider,
                                         const verbs::PortInfo& info) {
  NORIA_TRY_ASSIGN(verbs::OpenPort device, verbs::open_port(*provider, info));
  return std::shared_ptr<Port>(new Port(std::move(provider), std::move(device)));
}

Result<std::shared_ptr<Port>> OpenPorts::open(const verbs::PortInfo& info) {
  const MutexLock lock(mutex_);
  std::weak_ptr<Port>& known = ports_[{info.device, info.port}];
  if (std::shared_ptr<Port> port = known.lock(); port != nullptr) return port;
  NORIA_TRY_ASSIGN(std::shared_ptr<Port> port, Port::open(provider_, info));
  known = port;
  return port;
}

}  // namespace noria::transport
