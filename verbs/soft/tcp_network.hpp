// TcpNetwork: the peers that this process reaches over TCP, and its port.
//
// For hosts without memory in common. Who has requests calls the process whose host and slot its
// queue pair's path names, at port `base + slot`; all its queue pairs share that connection, in
// which it is the initiator. Who is called serves them. So two processes have up to two
// connections, each with one direction, one order, and clear roles.
//
//   Words       What an initiator reads of its target elsewhere in shared memory
//   (shared_layout.hpp)
//               it has here in a mirror, a segment of its own that nobody else sees: the target
//               tells it what changed. The rest of the device cannot tell such a peer from another.
//   Requests    go part by part, one under way for each queue pair, and each part is answered: by
//               the target's own hand, which checks keys under its own lock (tcp_target.hpp). So a
//               target that never polls works, and what is revoked is not touched any more.
//   Messages    leave their notice in a ring of the target's mirror, from which they are harvested
//               as any other.
//   Silence     A connection that ended, or whose other host is silent, lets requests wait for as
//               long as their queue pair says; then they fail as retried in vain
//               (tcp_initiator.hpp).
//   Strangers   Only processes are served that a path of ours has named, by host and slot, each
//               over one connection. Who calls from another host, does not say hello in time or
//               says something else is dropped, and so is the oldest of too many.
//
// Who reads: whoever polls a completion queue, and the service thread, which sleeps on the sockets.
// While somebody polls, it is not woken by what comes. Nothing is left behind by a kill.
//
// Locks, in order: pump_, Engine's registry, Cq::list, Qp::exec, mutex_, a stream's own.
//
// Threads: any thread.
#pragma once

#include <atomic>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "verbs/soft/changed_qps.hpp"
#include "verbs/soft/peer.hpp"
#include "verbs/soft/shared_layout.hpp"
#include "verbs/soft/spin_lock.hpp"
#include "verbs/soft/tcp_socket.hpp"
#include "verbs/soft/tcp_stream.hpp"

namespace noria::soft {

class Engine;
struct TcpTarget;

// One connection. Its peer comes with the other side's hello, and stays for as long as a queue pair
// uses it.
class TcpConnection {
 public:
  TcpConnection(Fd fd, in_addr_t address_in, uint32_t slot_in, bool is_initiator_in);
  ~TcpConnection();

  TcpStream stream;
  const in_addr_t address;
  const uint32_t slot;      // whom we called; 0 where we were called
  const bool is_initiator;  // we are
  const uint64_t id;

  // Asks to be told of a queue pair of the peer's, once.
  void watch(uint32_t qpn);

 private:
  friend class TcpNetwork;
  std::atomic<bool> is_lost_{false};
  std::unique_ptr<Segment> mirror_;
  std::unique_ptr<Peer> peer_;
  std::atomic<Peer*> ready_{nullptr};  // the same, once it may be used
  std::atomic<int> users_{0};
  std::array<std::atomic<uint64_t>, kQpWords> watched_{};
  // Under pump_.
  const Nanoseconds greets_until_;
  bool is_readable_ = false;
  std::unique_ptr<TcpTarget> target_;  // where we serve
};

class TcpNetwork {
 public:
  struct Self {
    Engine* engine = nullptr;
    uint32_t slot = 0;
    uint64_t cookie[2] = {};
    int doorbell = -1;
    uint16_t port_base = 0;
  };
  explicit TcpNetwork(const Self& self);
  ~TcpNetwork();

  // Readable when there is something to be pumped. -1: the network could not be made.
  int epoll() const { return epoll_.get(); }

  // A path leads from our address to the process in that slot of that host: it is welcome at our
  // port. 0, or why nobody can call us, an errno value.
  int expect(in_addr_t own, in_addr_t other, uint32_t slot) NORIA_EXCLUDES(mutex_);

  // The process in that slot of that host, in use until done_with(); null, and called, where it is
  // not known yet.
  struct Called {
    Peer* peer = nullptr;
    bool is_pending = false;  // it was called before, and has not refused
  };
  Called call(in_addr_t own, in_addr_t other, uint32_t slot) NORIA_EXCLUDES(mutex_);
  // How long who is called, and asked what its queue pair is, gets to answer before requests count
  // their own time: its threads may have to wait for a processor.
  static constexpr Nanoseconds kGrace = 1'000'000'000;
  static void use(Peer* peer);
  static void done_with(Peer* peer);

  // Takes what has come and sends what is due. For who polls: returns at once if another thread is
  // at it. `may_sleep`: he has armed his queue, so that this may be his last look.
  void pump(bool may_sleep) NORIA_EXCLUDES(pump_, mutex_);
  // The same for the service thread, which also looks after time; when to call again.
  Nanoseconds tend() NORIA_EXCLUDES(pump_, mutex_);
  // Somebody is about to sleep who has polled: the service thread takes over.
  void watch_again() { polled_at_.store(0, std::memory_order_relaxed); }
  // Whether somebody polls, so that what comes need not wake the service thread.
  bool is_polled(Nanoseconds now) const;

  // Whose words peers are told.
  ChangedQps& changed_qps() { return changed_qps_; }

  // In a forked child, which must not keep its parent's sockets open.
  void close_all() NORIA_NO_THREAD_SAFETY_ANALYSIS;

 private:
  static constexpr uint64_t kListener = 0;
  struct Expected {
    in_addr_t address;
    uint32_t slot;
    bool operator==(const Expected&) const = default;
  };
  TcpConnection* find(uint64_t id) NORIA_EXCLUDES(mutex_);
  TcpConnection* add(std::unique_ptr<TcpConnection> connection) NORIA_REQUIRES(mutex_);
  bool is_expected(in_addr_t address) NORIA_EXCLUDES(mutex_);
  bool may_serve(const TcpConnection& connection, const tcp::Hello& hello) NORIA_REQUIRES(pump_)
      NORIA_EXCLUDES(mutex_);
  void accept() NORIA_REQUIRES(pump_) NORIA_EXCLUDES(mutex_);
  void pump_locked() NORIA_REQUIRES(pump_) NORIA_EXCLUDES(mutex_);
  void read(TcpConnection& connection) NORIA_REQUIRES(pump_);
  bool handle(TcpConnection& connection, const TcpStream::Frame& frame) NORIA_REQUIRES(pump_);
  bool admit(TcpConnection& connection, const TcpStream::Frame& frame) NORIA_REQUIRES(pump_);
  void lose(TcpConnection& connection) NORIA_REQUIRES(pump_);
  Nanoseconds look_after(Nanoseconds now) NORIA_REQUIRES(pump_) NORIA_EXCLUDES(mutex_);
  void watch_listener(bool is_on);

  const Self self_;
  Fd epoll_;
  std::atomic<Nanoseconds> polled_at_{0};
  ChangedQps changed_qps_;
  SpinLock pump_;
  std::vector<TcpConnection*> current_ NORIA_GUARDED_BY(pump_);  // all, as of the last change
  uint64_t seen_changes_ NORIA_GUARDED_BY(pump_) = 0;
  Nanoseconds listens_again_ NORIA_GUARDED_BY(pump_) = kNever;
  bool has_more_ NORIA_GUARDED_BY(pump_) = false;  // than was taken at once
  Mutex mutex_;
  Fd listener_ NORIA_GUARDED_BY(mutex_);
  std::vector<Expected> expected_ NORIA_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<TcpConnection>> connections_ NORIA_GUARDED_BY(mutex_);
  std::atomic<uint64_t> changes_{0};
};

}  // namespace noria::soft
