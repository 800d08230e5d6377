// Neighbours: the peers that this process knows, by slot, and the links to them.
//
// want() asks for a link to a slot and returns at once; the service thread finishes it. A peer that
// died leaves its slot, but stays as an object while a queue pair uses it, and a while after: what
// it sent before it died is still to be read.
//
// Threads: on_*() by the service thread; the rest from any thread.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "base/mutex.hpp"
#include "verbs/soft/link.hpp"
#include "verbs/soft/memory_table.hpp"
#include "verbs/soft/peer.hpp"
#include "verbs/soft/watched.hpp"

namespace noria::soft {

class Neighbours {
 public:
  // Who we are, and what a peer gets of us.
  struct Self {
    Peer::Identity identity;
    int listener = -1, segment = -1, doorbell = -1, pidfd = -1, epoll = -1;
    bool may_attach = true;  // cross-memory attach is tried
  };
  // `own_ports` by device; they outlive the neighbours.
  Neighbours(const Self& self, const SharedSegment& own, const std::vector<SharedPort>& own_ports,
             MemoryTable& memory);

  // Whether use() may find somebody in the slot; whether use_sender() may. Loads.
  bool has_peer(uint32_t slot) const { return by_slot_[slot].load(std::memory_order_relaxed); }
  bool has_latest(uint32_t slot) const { return latest_[slot].load(std::memory_order_relaxed); }
  // The live peer in a slot, or null. It is valid until done_with().
  Peer* use(uint32_t slot) NORIA_EXCLUDES(mutex_);
  // The peer in a slot that wrote to us, as `has_written(const Peer&)` says, dead or alive; while
  // there is none, the last one known there if it lives. Null if neither.
  template <class HasWritten>
  Peer* use_sender(uint32_t slot, HasWritten has_written) NORIA_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    Peer* sender = latest_[slot].load(std::memory_order_relaxed);
    if (sender != nullptr && !sender->is_alive()) sender = nullptr;
    for (const Known& known : known_)
      if (known.peer->identity().slot == slot && has_written(static_cast<const Peer&>(*known.peer)))
        sender = known.peer.get();
    return count_use(sender);
  }
  void done_with(Peer* peer) NORIA_EXCLUDES(mutex_);

  // `linking` also where somebody is in the slot and takes no calls now: ask again later.
  enum class Reach { known, linking, absent };
  Reach want(uint32_t slot) NORIA_EXCLUDES(mutex_);

  // What all peers together moved to and from one of our devices.
  Moved inbound(uint32_t device) NORIA_EXCLUDES(mutex_);

  void announce_channel(uint32_t id, int fd) NORIA_EXCLUDES(mutex_);
  void withdraw_channel(uint32_t id) NORIA_EXCLUDES(mutex_);
  void announce(const LinkMessage& message, int fd) NORIA_EXCLUDES(mutex_);

  // Calls `look(const Peer&)` for every peer ever known that still is an object, ourselves too.
  template <class Look>
  void for_each(Look look) NORIA_EXCLUDES(mutex_) {
    MutexLock lock(mutex_);
    for (const Known& known : known_) look(static_cast<const Peer&>(*known.peer));
  }

  // False: no descriptor for a caller, which goes on waiting and would wake us without end.
  bool on_listener() NORIA_EXCLUDES(mutex_);
  // False: no descriptor for what comes over the link, or no addresses to map it at. It is watched
  // again after resume_links().
  bool on_link(int fd) NORIA_EXCLUDES(mutex_);
  void resume_links() NORIA_EXCLUDES(mutex_);
  void on_pidfd(int fd) NORIA_EXCLUDES(mutex_);
  // Whether a peer was lost since this was asked last.
  bool take_loss() NORIA_EXCLUDES(mutex_);
  // Whether a peer took memory back that is still mapped here; unmaps it, once nobody of this
  // process can be in the middle of it.
  bool has_dropped() NORIA_EXCLUDES(mutex_);
  void unmap_dropped() NORIA_EXCLUDES(mutex_);

  // Closes every link: in a forked child, which must not keep its parent's sockets open.
  void close_all() NORIA_NO_THREAD_SAFETY_ANALYSIS;

 private:
  struct Known {
    std::unique_ptr<Peer> peer;
    int users = 0;
  };
  struct Contact {
    Link link;
    Peer* peer = nullptr;      // null until its hello came
    uint32_t wanted_slot = 0;  // that we connected to; 0 if it connected to us
    bool is_resting = false;   // not watched
  };
  struct Channel {
    uint32_t id;
    int fd;
  };
  void add_contact(Link link, uint32_t wanted_slot) NORIA_REQUIRES(mutex_);
  bool say_hello(Link& link) NORIA_REQUIRES(mutex_);
  bool take(Contact& contact, Received& received) NORIA_REQUIRES(mutex_);
  bool admit(Contact& contact, Received& received) NORIA_REQUIRES(mutex_);
  void look_for_collisions(Peer& peer) const NORIA_REQUIRES(mutex_);
  Peer* add_known(std::unique_ptr<Peer> peer) NORIA_REQUIRES(mutex_);
  Peer* find_known(uint32_t slot, const uint64_t (&cookie)[2]) const NORIA_REQUIRES(mutex_);
  void make_usable(Peer* peer) NORIA_REQUIRES(mutex_);
  Peer* count_use(Peer* peer) NORIA_REQUIRES(mutex_);
  void lose(Peer* peer) NORIA_REQUIRES(mutex_);
  void bury() NORIA_REQUIRES(mutex_);
  void watch(int fd, uint32_t events) NORIA_REQUIRES(mutex_);
  void drop(size_t index) NORIA_REQUIRES(mutex_);

  const Self self_;
  const SharedSegment& own_;
  const std::vector<SharedPort>& ports_;
  MemoryTable& memory_;
  // Written under the lock; read without as hints.
  std::array<std::atomic<Peer*>, kSlots> by_slot_{}, latest_{};
  Mutex mutex_;
  bool has_lost_ NORIA_GUARDED_BY(mutex_) = false;
  std::vector<Known> known_ NORIA_GUARDED_BY(mutex_);  // in the order we met
  // By peers that are gone.
  std::array<Moved, kMaxDevices> buried_ NORIA_GUARDED_BY(mutex_);
  std::vector<Contact> contacts_ NORIA_GUARDED_BY(mutex_);
  std::vector<Channel> channels_ NORIA_GUARDED_BY(mutex_);
};

}  // namespace noria::soft
