// Peer: another process of this host, as seen from here: its segment, how to wake it, whether it
// lives, and the memory it lets us map. Our own process is a Peer too (loopback), and so is one
// that is reached over TCP: in place of its segment we have a mirror of our own (tcp_network.hpp).
//
// A Peer stays valid while anything refers to it, also after its process died: what it had
// announced before it died is still in its segment and is still delivered.
//
// Threads: is_alive(), mapped(), channel_fd(), wake() from any thread; the rest by the service
// thread.
#pragma once

#include <sys/types.h>

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "verbs/soft/segment.hpp"
#include "verbs/soft/shared_port.hpp"
#include "verbs/soft/store_choice.hpp"

namespace noria::soft {

class TcpConnection;

class Peer {
 public:
  struct Identity {
    uint32_t slot = 0;
    pid_t pid = 0;
    uint64_t cookie[2] = {};
  };

  // Of another process; null if its segment is not what it claims to be.
  struct Descriptors {
    Fd segment, doorbell, pidfd;
  };
  static std::unique_ptr<Peer> map(const Identity& identity, uint32_t own_slot, bool may_attach,
                                   Descriptors descriptors);
  // Of this process. `own`, `ports` and `doorbell` outlive the peer.
  static std::unique_ptr<Peer> loopback(const Identity& identity, const SharedSegment& own,
                                        const std::vector<SharedPort>& ports, int doorbell);

  // Of a process at the other end of a connection. `mirror` and `doorbell`, which is ours, outlive
  // the peer.
  static std::unique_ptr<Peer> over_tcp(const Identity& identity, const SharedSegment& mirror,
                                        TcpConnection* connection, int doorbell);

  const Identity& identity() const { return identity_; }
  const SharedSegment& shared() const { return *shared_; }
  // When the port of its device is free; everybody who sends to it or reads from it books there.
  // Null while it is not known.
  PortSchedule* port(uint32_t device) const {
    return ports_[device].load(std::memory_order_acquire);  // with add_port()
  }
  void add_port(uint32_t device, const Fd& fd);
  bool is_self() const { return is_self_; }
  TcpConnection* connection() const { return connection_; }  // null: it shares memory with us
  // Whether cross-memory attach reaches this process (cookie read back through it).
  bool can_attach() const { return can_attach_.load(std::memory_order_relaxed); }  // a hint
  // The kernel refused what it allowed before.
  void lose_attach() { can_attach_.store(false, std::memory_order_relaxed); }

  // How to store into what is mapped here.
  StoreChoice& stores() const { return stores_; }

  bool is_alive() const { return alive_.load(std::memory_order_acquire); }    // with mark_dead()
  void mark_dead() const { alive_.store(false, std::memory_order_release); }  // with is_alive()
  // A device of the peer whose address one of ours has under another name: no path leads there.
  bool is_ambiguous(uint32_t device) const {
    return (ambiguous_.load(std::memory_order_relaxed) >> device & 1) != 0;  // set before we met
  }
  void set_ambiguous(uint32_t device) {
    ambiguous_.fetch_or(1u << device, std::memory_order_relaxed);
  }
  // What the peer moved to and from one of our devices since we met.
  Moved moved(uint32_t own_slot, uint32_t device) const {
    return shared_->header.traffic[own_slot][device].now() - moved_before_[device];
  }

  // Asks the kernel, once for each tick of its clock (1 to 10 ms): is the process that we know
  // still there? A pid alone could by now be somebody else.
  bool confirm_alive() const;
  bool has_ended() const { return ends_within(0); }  // asks the kernel
  // Waits for it that long: a process that is ending has no memory long before it has ended.
  bool ends_within(Nanoseconds limit) const;
  int pidfd() const { return pidfd_.get(); }

  // A fence waited in vain for the mark of queue pair `index`; whether it still stands, so that the
  // next fence need not wait as long: the process is stopped.
  void note_stalled(uint32_t index) const;
  bool is_stalled() const;

  // Where `bytes` at `offset` of this peer's allocation `id` are mapped here; null while it is not
  // known, or if it has no such bytes.
  uint8_t* mapped(uint32_t id, uint64_t offset, uint64_t bytes) const {
    const Mapped* entry = mapped_[id % kMaxAllocations].load(std::memory_order_acquire);
    if (entry == nullptr || entry->id != id) return nullptr;
    if (offset > entry->bytes || bytes > entry->bytes - offset) return nullptr;
    return entry->base.get() + offset;
  }
  void add_mapping(uint32_t id, size_t bytes, const Fd& fd);
  // No longer to be found. Who found it before may still be copying, so that it stays mapped until
  // unmap_dropped(), which is called once nobody can be.
  void drop_mapping(uint32_t id);
  bool has_dropped() const { return !dropped_.empty() || !old_channels_.empty(); }
  void unmap_dropped() {
    dropped_.clear();
    old_channels_.clear();
  }

  // The descriptor that wakes sleepers of completion channel `id`, -1 while it is not known.
  int channel_fd(uint32_t id) const {
    const Channel* entry = channels_[id % kMaxChannels].load(std::memory_order_acquire);
    return entry != nullptr && entry->id == id ? entry->fd.get() : -1;
  }
  void add_channel(uint32_t id, Fd fd);
  void drop_channel(uint32_t id);  // its descriptor stays open as long as a dropped mapping does

  // Wakes the peer's service thread.
  void wake() const;

  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;
  ~Peer();

 private:
  struct Mapped {
    uint32_t id;
    size_t bytes;
    Mapping<uint8_t> base;
  };
  struct Channel {
    uint32_t id;
    Fd fd;
  };
  Peer() = default;
  bool prove_attach() const;

  Identity identity_;
  // What its counters for our slot said when we met: traffic with an earlier owner of it.
  std::array<Moved, kMaxDevices> moved_before_{};
  Mapping<const SharedSegment> mapping_;
  const SharedSegment* shared_ = nullptr;
  std::vector<Mapping<PortSchedule>> port_mappings_;
  std::unique_ptr<PortSchedule[]> own_ports_;  // of a peer that shows none: what we send to it
  std::array<std::atomic<PortSchedule*>, kMaxDevices> ports_{};
  Fd doorbell_, pidfd_;
  int doorbell_fd_ = -1;
  bool is_self_ = false;
  TcpConnection* connection_ = nullptr;
  std::atomic<uint32_t> ambiguous_{0};  // a bit for each device
  std::atomic<bool> can_attach_{false};
  mutable std::atomic<bool> alive_{true};
  mutable std::atomic<Nanoseconds> confirmed_{0};  // at which tick
  mutable StoreChoice stores_;
  // relaxed: a wrong answer costs a wait more or less, no bytes.
  mutable std::atomic<uint64_t> stalled_mark_{0};
  mutable std::atomic<uint32_t> stalled_index_{0};
  // Entries are replaced by the service thread only. Readers hold no lock of this, so that what was
  // replaced stays until unmap_dropped().
  std::array<std::atomic<Mapped*>, kMaxAllocations> mapped_{};
  std::array<std::atomic<Channel*>, kMaxChannels> channels_{};
  std::vector<std::unique_ptr<Mapped>> dropped_;
  std::vector<std::unique_ptr<Channel>> old_channels_;
};

// Adds one to an eventfd: wakes who sleeps on it.
void signal_event(int fd);
// Takes what an eventfd has counted; does not block if the descriptor is non-blocking.
uint64_t take_events(int fd);

}  // namespace noria::soft
