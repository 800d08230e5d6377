// What the engine has to do with peers that it reaches over TCP.
#include <errno.h>

#include <algorithm>

#include "verbs/soft/address.hpp"
#include "verbs/soft/device_time.hpp"
#include "verbs/soft/engine.hpp"

namespace noria::soft {

bool Engine::may_leave_host() const {
  return !is_time_standing() && (params_.soft_copy == "auto" || params_.soft_copy == "tcp");
}

bool Engine::goes_over_tcp(const ibv_ah_attr& path, uint32_t qpn, uint32_t device) const {
  if (!may_leave_host()) return false;
  if (leaves_host(path, address(device))) return true;
  return params_.soft_copy == "tcp" && slot_of(qpn) != slot_;
}

int Engine::open_tcp(const ibv_ah_attr& path, uint32_t qpn, uint32_t device) {
  MutexLock lock(opening_);
  if (tcp_owner_ == nullptr) {
    const SharedHeader& header = shared().header;
    tcp_owner_ = std::make_unique<TcpNetwork>(
        TcpNetwork::Self{.engine = this,
                         .slot = slot_,
                         .cookie = {header.cookie[0], header.cookie[1]},
                         .doorbell = doorbell_.get(),
                         .port_base = static_cast<uint16_t>(params_.soft_port_base)});
    if (tcp_owner_->epoll() < 0) {
      tcp_owner_.reset();
      return EMFILE;
    }
    watch(epoll_.get(), tcp_owner_->epoll(), Watched::tcp);
    tcp_.store(tcp_owner_.get(), std::memory_order_release);  // pairs with tcp()
  }
  return tcp_owner_->expect(wire_address(address(device)), wire_address(path, address(device)),
                            slot_of(qpn));
}

// While somebody polls, what comes is his to take; we look whether he still does.
Nanoseconds Engine::tend_tcp() {
  TcpNetwork* const network = tcp();
  if (network == nullptr) return kNever;
  const Nanoseconds now = device_now();
  if (const bool rests = network->is_polled(now); rests != tcp_rests_) {
    tcp_rests_ = rests;
    change_watch(epoll_.get(), network->epoll(), Watched::tcp, rests ? 0u : EPOLLIN);
  }
  const Nanoseconds next = network->tend();
  return tcp_rests_ ? std::min(next, now + kTick) : next;
}

}  // namespace noria::soft
