// Port: a port that is open, with its protection domain and the registrations of it, shared by all
// that use it.
//
// Queue pairs, completion queues and registrations of a port belong to one protection domain, so a
// process opens a port once for all its connections, and it closes with the last of them. OpenPorts
// is who knows which ports are open now; open() enters the kernel only for a port that is not.
//
// Threads: any thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "base/mutex.hpp"
#include "verbs/device.hpp"
#include "verbs/provider.hpp"
#include "verbs/transport/mr_cache.hpp"

namespace noria::transport {

class Port {
 public:
  static Result<std::shared_ptr<Port>> open(std::shared_ptr<const verbs::Provider> provider,
                                            const verbs::PortInfo& info);

  const verbs::Api& api() const { return provider_->api(); }
  const std::shared_ptr<const verbs::Provider>& provider() const { return provider_; }
  const verbs::OpenPort& device() const { return device_; }
  ibv_context* context() const { return device_.context.get(); }
  ibv_pd* pd() const { return device_.pd.get(); }
  MrCache& registrations() { return registrations_; }
  // Whether the device can at all; asks it.
  bool registers_dmabuf() const { return verbs::can_register_dmabuf(api(), pd()); }
  // That device memory is registered by its address, and why: said once.
  void say_no_dmabuf(Status refusal);

 private:
  Port(std::shared_ptr<const verbs::Provider> provider, verbs::OpenPort device)
      : provider_(std::move(provider)),
        device_(std::move(device)),
        registrations_(provider_->api(), device_.pd.get()) {}

  std::shared_ptr<const verbs::Provider> provider_;  // whose functions close the device
  verbs::OpenPort device_;
  MrCache registrations_;
  std::atomic<bool> has_said_no_dmabuf_{false};
};

class OpenPorts {
 public:
  explicit OpenPorts(std::shared_ptr<const verbs::Provider> provider)
      : provider_(std::move(provider)) {}

  // The port that somebody has open, or that is opened now. Who opens one waits for nobody but
  // another who does.
  Result<std::shared_ptr<Port>> open(const verbs::PortInfo& info) NORIA_EXCLUDES(mutex_);

 private:
  using Name = std::pair<std::string, uint8_t>;

  const std::shared_ptr<const verbs::Provider> provider_;
  Mutex mutex_;
  std::map<Name, std::weak_ptr<Port>> ports_ NORIA_GUARDED_BY(mutex_);
};

}  // namespace noria::transport
