// Engine: what one process has of the software HCA: its segment, its slot, its neighbours, its
// memory regions, the registry of its queues, and one service thread.
//
// Where the process's time stands (device_time.hpp) there is no thread, and nothing of other
// processes: no slot, no links. The process is in slot 1 of a host of its own, and turn() is the
// thread.
//
// The service thread sleeps. It wakes for links, dead peers, completion events to relay, and for
// send queues that their owner left unfinished (request_service()); it never spins.
//
// Threads: any thread. acquire() and release() are balanced by the device's open and close.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <vector>

#include "base/clock.hpp"
#include "base/mutex.hpp"
#include "base/own_thread.hpp"
#include "base/params.hpp"
#include "verbs/soft/completion_queue.hpp"
#include "verbs/soft/faults.hpp"
#include "verbs/soft/memory_table.hpp"
#include "verbs/soft/neighbours.hpp"
#include "verbs/soft/posted_writes.hpp"
#include "verbs/soft/queue_pair.hpp"
#include "verbs/soft/tcp_network.hpp"

namespace noria::soft {

class Engine {
 public:
  // For these devices, kMaxDevices at most. Null with errno set where the host cannot carry them;
  // the log has why.
  static std::unique_ptr<Engine> start(const Params& params,
                                       const std::vector<SoftDevice>& devices);
  ~Engine();

  const Params& params() const { return params_; }
  SharedSegment& shared() const { return **segment_; }
  uint32_t slot() const { return slot_; }
  // Whether any port of this process is shaped; then all are paced, some of them at no rate.
  bool is_shaped() const { return is_shaped_; }
  const Shaper& shaper(uint32_t device) const { return shapers_[device]; }
  PortSchedule& port(uint32_t device) const { return *ports_[device].schedule; }
  const SharedAddress& address(uint32_t device) const { return shared().header.addresses[device]; }
  bool places_late() const { return places_late_; }
  // Whether a peer that may not be touched is asked to move the bytes itself.
  bool may_ask() const { return may_ask_; }
  Faults* faults() const { return faults_.get(); }  // null where none are set
  // How bytes move to peers, for people.
  const char* copy_path() const;
  MemoryTable& memory() { return *memory_; }
  PostedWrites& posted_writes() { return posted_writes_; }
  Neighbours& neighbours() { return *neighbours_; }
  // Whether a queue pair on this path talks to its peer over TCP; whether it may leave the host.
  bool goes_over_tcp(const ibv_ah_attr& path, uint32_t qpn, uint32_t device) const;
  bool may_leave_host() const;
  // Null before the first such path. acquire: pairs with open_tcp().
  TcpNetwork* tcp() const { return tcp_.load(std::memory_order_acquire); }
  // For such a path to that queue pair. 0, or an errno value: nobody could call us.
  int open_tcp(const ibv_ah_attr& path, uint32_t qpn, uint32_t device) NORIA_EXCLUDES(opening_);
  // What peers are told of a queue pair of ours has changed: at the next look of whoever polls, or
  // of the service thread, they hear it.
  void note_for_peers(uint32_t index) {
    if (TcpNetwork* network = tcp(); network != nullptr) network->changed_qps().note(index);
  }
  // The same, and that look is by then.
  void tell_over_tcp(uint32_t index, Nanoseconds by = kAtOnce) {
    if (tcp() == nullptr) return;
    note_for_peers(index);
    request_service(by);
  }
  // Ends the use of somebody that neighbours() or tcp() gave.
  void done_with(Peer* peer);

  // ---- registries: objects get an index in the segment, and are seen by the service thread -----
  Qp* add_qp(ibv_pd* pd, uint32_t pd_number, const ibv_qp_init_attr& init)
      NORIA_EXCLUDES(registry_);
  void remove_qp(Qp* qp) NORIA_EXCLUDES(registry_);
  // What queue pairs of this process moved as initiators, by their device.
  Moved moved(uint32_t device) NORIA_EXCLUDES(registry_);
  // What peers wrote to them that rode in notices.
  Moved taken(uint32_t device) NORIA_EXCLUDES(registry_);
  Cq* add_cq(uint32_t depth, Channel* channel) NORIA_EXCLUDES(queues_);
  void remove_cq(Cq* cq) NORIA_EXCLUDES(queues_);
  Channel* add_channel() NORIA_EXCLUDES(queues_);  // null with errno set
  void remove_channel(Channel* channel) NORIA_EXCLUDES(queues_);
  uint32_t next_pd_number(uint32_t device) {
    return pd_of(pd_serial_.fetch_add(1, std::memory_order_relaxed), device);
  }
  bool is_empty() NORIA_EXCLUDES(registry_, queues_);

  // Room for rings in the segment.
  uint64_t carve(uint64_t bytes) NORIA_EXCLUDES(carve_);
  void release(uint64_t offset, uint64_t bytes) NORIA_EXCLUDES(carve_);
  // A new ring for the queue pair at `index`, zeroed. It belongs to the index, not to the object: a
  // peer may still read what a queue pair sent before it was destroyed.
  uint64_t ring_room(uint32_t index, uint64_t bytes) NORIA_EXCLUDES(carve_);

  // Calls `look(Qp&)` / `look(Cq&)` for each, with the registry locked.
  template <class Look>
  void for_each_qp(Look look) NORIA_EXCLUDES(registry_) {
    MutexLock lock(registry_);
    for (Qp* qp : qps_in_use_) look(*qp);
  }
  // The same for the one of that number, if it is ours and exists.
  template <class Look>
  void with_qp(uint32_t qpn, Look look) NORIA_EXCLUDES(registry_) {
    MutexLock lock(registry_);
    if (slot_of(qpn) != slot_ || index_of(qpn) >= kMaxQps) return;
    if (Qp* qp = qps_[index_of(qpn)].get(); qp != nullptr) look(*qp);
  }
  template <class Look>
  void for_each_cq(Look look) NORIA_EXCLUDES(queues_) {
    MutexLock lock(queues_);
    for (Cq* cq : cqs_in_use_) look(*cq);
  }

  // A send queue has work left: the service thread looks at it by then. kAtOnce for an owner that
  // sleeps; a tick from now for one that polls, who will have finished it itself.
  void request_service(Nanoseconds by) NORIA_EXCLUDES(timer_lock_);
  static constexpr Nanoseconds kAtOnce = 1;

  // In a process whose time stands: does what the service thread would do now. When there is more
  // to do; a time that has come already if it is to be called again at once.
  Nanoseconds turn();

  // In a forked child: lets go of what would keep the parent's presence alive.
  void abandon_in_child();

  static constexpr Nanoseconds kTick = 1'000'000;
  static constexpr Nanoseconds kSleeperTick = 100'000;
  static constexpr Nanoseconds kLongTick = 10'000'000;

 private:
  explicit Engine(const Params& params)
      : params_(params),
        places_late_(params.soft_place == "late"),
        may_ask_(params.soft_copy != "cma") {}
  bool set_up(const std::vector<SoftDevice>& devices);
  bool join_host();
  bool start_thread();
  bool open_ports(const std::vector<SoftDevice>& devices);
  void run();
  void handle(uint64_t tag);
  Nanoseconds look_round() NORIA_EXCLUDES(registry_);
  Nanoseconds tend_queues() NORIA_EXCLUDES(registry_);
  void watch_callers(uint32_t events);
  void rest_links();
  Nanoseconds tend_links();
  Nanoseconds tend_tcp();
  void relay_events() NORIA_EXCLUDES(registry_, queues_);
  void tell_losses() NORIA_EXCLUDES(registry_, queues_);
  void reclaim_rings() NORIA_REQUIRES(registry_);
  void release_ring(uint32_t index) NORIA_EXCLUDES(carve_);
  void set_timer(Nanoseconds at) NORIA_REQUIRES(timer_lock_);

  const Params params_;
  std::vector<Shaper> shapers_;         // by device
  std::vector<uint64_t> max_messages_;  // likewise, bytes of a request
  bool is_shaped_ = false;
  const bool places_late_, may_ask_;
  std::unique_ptr<Segment> segment_;  // guarded by carve_ where rings are carved
  uint32_t slot_ = 0;
  Fd listener_, doorbell_, pidfd_, epoll_, timer_;
  std::vector<SharedPort> ports_;  // by device
  std::unique_ptr<Faults> faults_;
  std::unique_ptr<MemoryTable> memory_;
  PostedWrites posted_writes_;
  std::unique_ptr<Neighbours> neighbours_;
  Mutex opening_;
  std::unique_ptr<TcpNetwork> tcp_owner_ NORIA_GUARDED_BY(opening_);
  std::atomic<TcpNetwork*> tcp_{nullptr};
  std::atomic<uint32_t> pd_serial_{1};

  struct RingRoom {
    uint64_t offset = Segment::kNoRoom, bytes = 0;
  };
  Mutex carve_;
  std::vector<RingRoom> ring_rooms_ NORIA_GUARDED_BY(carve_) = std::vector<RingRoom>(kMaxQps);
  // Two registries: who waits for an event must not wait for the service thread's copies.
  Mutex registry_, queues_;
  std::vector<std::unique_ptr<Qp>> qps_ NORIA_GUARDED_BY(registry_) =
      std::vector<std::unique_ptr<Qp>>(kMaxQps);
  std::vector<std::unique_ptr<Cq>> cqs_ NORIA_GUARDED_BY(queues_) =
      std::vector<std::unique_ptr<Cq>>(kMaxCqs);
  // Those that exist, side by side: to walk over all indices would cost 5 us.
  std::vector<Qp*> qps_in_use_ NORIA_GUARDED_BY(registry_);
  std::vector<Cq*> cqs_in_use_ NORIA_GUARDED_BY(queues_);
  std::vector<std::unique_ptr<Channel>> channels_ NORIA_GUARDED_BY(queues_) =
      std::vector<std::unique_ptr<Channel>>(kMaxChannels);
  uint32_t next_qp_ NORIA_GUARDED_BY(registry_) = 0;
  // By queue pairs that are gone.
  std::array<Moved, kMaxDevices> moved_before_ NORIA_GUARDED_BY(registry_){};
  std::array<Moved, kMaxDevices> taken_before_ NORIA_GUARDED_BY(registry_){};
  std::vector<uint32_t> resting_ NORIA_GUARDED_BY(registry_);  // removed, ring not yet given back
  uint32_t channel_serial_ NORIA_GUARDED_BY(queues_) = 1;

  Nanoseconds links_due_ = kNever;  // the service thread's own; see rest_links()
  Nanoseconds lack_told_again_ = 0;
  bool tcp_rests_ = false;  // likewise; see tend_tcp()
  // When the service thread looks next. Written under the lock, which also sets the timer.
  SpinLock timer_lock_;
  std::atomic<Nanoseconds> next_look_{kNever};
  std::atomic<bool> is_stopping_{false};
  OwnThread thread_;
};

}  // namespace noria::soft
