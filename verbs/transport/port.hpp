// Port: a port that is open, with its protection domain and the registrations of it, shared by all
// that use it.
//
// Queue pairs, completion queues and registrations of a port belong to one protection domain, so a
// process opens a port once for all its connections, and it closes with the last of them. OpenPorts
// is who knows which ports are open now; open() enters the kernel for a port that is not, and to
// see whether one that is has reported that it is reached otherwise now (port_events.hpp): who
// opens it from then on is told how. Registrations and connections that there are stay.
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
#include "verbs/transport/port_events.hpp"
#include "verbs/transport/provider_memory.hpp"

namespace noria::transport {

class Port {
 public:
  static Result<std::shared_ptr<Port>> open(std::shared_ptr<const verbs::Provider> provider,
                                            const verbs::PortInfo& info);

  const verbs::Api& api() const { return provider_->api(); }
  const std::shared_ptr<const verbs::Provider>& provider() const { return provider_; }
  // As it is reached now.
  verbs::OpenPort device() const NORIA_EXCLUDES(mutex_);
  ibv_context* context() const { return context_; }
  ibv_pd* pd() const { return pd_; }
  PortEvents& events() { return events_; }
  // Readable while the device has something to report; -1 when nothing more is awaited of it.
  int events_fd() const { return events_.is_device_lost() ? -1 : context_->async_fd; }
  // Reads what the device reported. Enters the kernel.
  void take_events() { events_.take(api(), context_, info_); }
  // The same; and where the port may be reached otherwise, asks how.
  void bring_up_to_date() NORIA_EXCLUDES(mutex_);
  MrCache& registrations() { return registrations_; }
  ProviderMemory& provider_memory() { return provider_memory_; }
  // Whether the device can at all; asks it.
  bool registers_dmabuf() const { return verbs::can_register_dmabuf(api(), pd()); }
  // That device memory is registered by its address, and why: said once.
  void say_no_dmabuf(Status refusal);

 private:
  Port(std::shared_ptr<const verbs::Provider> provider, const verbs::OpenPort& device)
      : provider_(std::move(provider)),
        device_(device),
        info_(device.info),
        context_(device.context.get()),
        pd_(device.pd.get()),
        registrations_(provider_->api(), pd_),
        provider_memory_(provider_->api(), context_) {}

  std::shared_ptr<const verbs::Provider> provider_;  // whose functions close the device
  mutable Mutex mutex_;
  verbs::OpenPort device_ NORIA_GUARDED_BY(mutex_);
  // What of it never changes.
  const verbs::PortInfo info_;
  ibv_context* const context_;
  ibv_pd* const pd_;
  MrCache registrations_;
  ProviderMemory provider_memory_;
  PortEvents events_;
  std::atomic<bool> has_said_no_dmabuf_{false};
};

class OpenPorts {
 public:
  explicit OpenPorts(std::shared_ptr<const verbs::Provider> provider)
      : provider_(std::move(provider)) {}

  // The port that somebody has open, or that is opened now: also in the place of one whose device
  // was lost. Who opens one waits for nobody but another who does.
  Result<std::shared_ptr<Port>> open(const verbs::PortInfo& info) NORIA_EXCLUDES(mutex_);

 private:
  using Name = std::pair<std::string, uint8_t>;

  const std::shared_ptr<const verbs::Provider> provider_;
  Mutex mutex_;
  std::map<Name, std::weak_ptr<Port>> ports_ NORIA_GUARDED_BY(mutex_);
};

}  // namespace noria::transport
