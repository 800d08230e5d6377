// DomainState: the rails of a domain and the table that leads completions to their connections.
//
// A connection takes a seat before its queue pairs exist, and is published in it when the handshake
// is done. Seats are taken under a lock (set-up); poll() reads the table without one.
//
// Threads: poll(), arm_and_wait(), leave() the domain's owner; take_seat(), publish() any thread.
#pragma once

#include <poll.h>

#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/check.hpp"
#include "base/clock.hpp"
#include "base/counters.hpp"
#include "base/mutex.hpp"
#include "base/params.hpp"
#include "verbs/completion.hpp"
#include "verbs/transport/rails.hpp"
#include "verbs/transport/wr_id.hpp"

namespace noria::transport {

class Link;

// Connections of one domain. A ring of any size uses a handful; a plugin has a domain a connection.
inline constexpr uint32_t kMaxLinks = 1024;

// A place in the table, and room in the completion queues for all that a connection can have there.
struct Seat {
  uint16_t index = 0;
  uint16_t generation = 0;
  uint32_t completions = 0;
};

class DomainState {
 public:
  // One rail for each port, of which there is one; `completions` is what each completion queue
  // shall hold.
  static Result<std::unique_ptr<DomainState>> create(std::span<const std::shared_ptr<Port>> ports,
                                                     const Params& params, uint32_t completions,
                                                     verbs::Waiting waiting);
  ~DomainState();

  Result<Seat> take_seat(uint32_t completions) NORIA_EXCLUDES(mutex_);
  // How many times a completion queue has room for so many more, beside `others`.
  uint32_t room(uint32_t completions, uint32_t others) NORIA_EXCLUDES(mutex_);
  void give_seat(const Seat& seat) NORIA_EXCLUDES(mutex_);
  void publish(const Seat& seat, Link& link);
  void leave(const Seat& seat);

  NORIA_HOT unsigned poll();
  Status arm_and_wait(Nanoseconds deadline, int wake_fd);

  const std::shared_ptr<RailSet>& rails() const { return rails_; }
  const Params& params() const { return params_; }
  CounterCells& counters() { return counters_; }  // written by the owner only

 private:
  DomainState(std::shared_ptr<RailSet> rails, const Params& params);

  // What poll() found at a rail, and what the rails behind it have; how many in all. Apart from it,
  // because most looks find nothing.
  [[gnu::noinline]] NORIA_HOT unsigned handle(Rail* rail, int got);
  NORIA_HOT void dispatch(const ibv_wc* wc, const ibv_wc* end);  // at least one
  NORIA_COLD void on_empty_polls();
  NORIA_COLD bool on_queue_failed(const Rail& rail);  // true if a connection failed by it
  // Looks at what the devices reported; connections that lost their queue pair or device fail.
  NORIA_COLD void check_devices();
  // The same of what was read already. True if one failed.
  NORIA_COLD bool end_lost();
  // Looks at every control socket; connections whose peer is gone fail after what already arrived
  // was handled.
  NORIA_COLD void check_control_sockets();
  void collect_poll_set(int wake_fd);

  // Every 4096th empty poll looks at devices and control sockets: about once in 0.1 ms of busy
  // polling.
  static constexpr uint32_t kEmptyPollsPerCheck = 4096;
  static constexpr int kPollBatch = 16;

  std::shared_ptr<RailSet> rails_;
  Rail* const first_rail_;  // in rails_, at least one
  Rail* const rails_end_;
  uint32_t empty_polls_left_ = kEmptyPollsPerCheck;
  std::array<ibv_wc, kPollBatch> wcs_;  // what poll() has found
  const Params params_;
  CounterCells counters_;
  std::vector<pollfd> poll_set_;  // kept to reuse its memory

  // release in publish() pairs with acquire in dispatch(): the connection is whole before a
  // completion reaches it. A seat is found by mask.
  static_assert((kMaxLinks & (kMaxLinks - 1)) == 0);
  std::array<std::atomic<Link*>, kMaxLinks> table_{};
  // Seats ever used. release in publish() pairs with acquire where the table is walked.
  std::atomic<uint32_t> seats_used_{0};

  Mutex mutex_;
  std::vector<uint16_t> free_seats_ NORIA_GUARDED_BY(mutex_);
  std::array<uint16_t, kMaxLinks> generations_ NORIA_GUARDED_BY(mutex_){};
  uint32_t next_seat_ NORIA_GUARDED_BY(mutex_) = 0;
  uint32_t completions_taken_ NORIA_GUARDED_BY(mutex_) = 0;
};

}  // namespace noria::transport
