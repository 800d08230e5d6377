// The control plane's state and its thread (private to control*.cc).
//
// One mutex guards everything; the thread holds it but for poll(2) and the callback. All sockets
// are non-blocking and what cannot be sent waits in the peer's queue, so nobody blocks on a stopped
// rank. control.cc has the calls, control_thread.cc the loop and the sockets, control_root.cc what
// only rank 0 does, control_join.cc how the others find it.
//
// Threads: as marked.
#pragma once

#include <poll.h>

#include <atomic>
#include <deque>
#include <list>
#include <optional>
#include <string>
#include <vector>

#include "base/fd.hpp"
#include "base/mutex.hpp"
#include "base/own_thread.hpp"
#include "bucketing/control.hpp"
#include "bucketing/control_wire.hpp"
#include "bucketing/forks.hpp"

namespace noria::bucketing {

// How long a rank waits for rank 0's word on what it announced, and on who is missing.
inline constexpr Nanoseconds kVerdict = 1_s;
// How long rank 0 waits for better news than a lost connection. A socket on the same host or rack
// is read long before; a busy host may need this.
inline constexpr Nanoseconds kHearsay = 250_ms;
// How long rank 0 waits for what ranks say that they owe, when one has waited for them in vain for
// much longer. Who has not answered by then is stopped.
inline constexpr Nanoseconds kQuestion = 2_s;

std::string seconds_text(Nanoseconds duration);             // "60 s", "1.5 s"
std::string ranks_text(const std::vector<int32_t>& ranks);  // "rank 2", "ranks 2, 3"

// `gone` said goodbye while `waiting` is in an exchange.
Failure left_while(int32_t gone, int32_t waiting, const std::string& what);
// `bytes` of one rank, or of all where all are sent together.
Failure too_large(const std::string& what, uint64_t bytes);

// A connection to rank 0 that it has accepted, with what was read beyond that.
struct RootLink {
  Fd socket;
  FrameParser parser;
};
// Tries until the deadline: rank 0 may start later.
Outcome<RootLink> connect_to_root(const ControlPlane::Options& options, Nanoseconds timeout);

class ControlPlane::State {
 public:
  State(const Options& options, Fd listener, RootLink root);
  ~State();
  State(const State&) = delete;
  State& operator=(const State&) = delete;

  void hang_up();
  Outcome<Ok> start();  // before all else
  Outcome<Ok> wait_until_joined();
  Outcome<std::vector<std::string>> all_gather(const std::string& what, const std::string& bytes,
                                               Nanoseconds deadline);
  Outcome<std::string> pass_right(const std::string& what, const std::string& bytes,
                                  Nanoseconds deadline);
  void announce(const Failure& failure);
  Failure settle(const Failure& failure);
  void on_failure(std::function<void()> wake);
  void on_question(std::function<std::string()> answer);
  void ask_around(const std::string& what);
  void leave(Nanoseconds deadline);
  Failure failure();
  bool failed() const {
    // relaxed: a hint for loops; the failure itself is read under the mutex.
    return failed_.load(std::memory_order_relaxed);
  }
  const Options& options() const { return options_; }
  const std::string& local_host() const { return local_host_; }

 private:
  enum class Exchange { gather, pass };
  struct Put {
    std::string what, bytes;
    Exchange kind = Exchange::gather;
  };
  // Another rank. On rank 0 one for each (its own holds only its puts); elsewhere [0] is rank 0.
  struct Peer {
    Fd socket;
    FrameParser parser;
    std::string out;  // not yet taken by the kernel
    std::deque<Put> puts;
    bool has_joined = false;
    bool said_goodbye = false;
  };
  // A question to all ranks that is under way; on rank 0.
  struct Survey {
    std::vector<std::optional<std::string>> answers;  // by rank
    std::vector<int32_t> askers;                      // to be told
    Nanoseconds until = kNever;
  };
  // A caller that has not shown a hello yet.
  struct Visitor {
    Fd socket;
    std::string hello;
    Nanoseconds since = 0;
  };

  bool is_root() const { return options_.rank == 0; }

  void close_in_child();

  // ---- control.cc
  Outcome<std::vector<std::string>> exchange(const Put& mine, Nanoseconds deadline);
  void commit(const Failure& failure) NORIA_REQUIRES(mutex_);
  void expect_verdict(const Failure& failure, Nanoseconds patience) NORIA_REQUIRES(mutex_);
  void say_goodbye() NORIA_REQUIRES(mutex_);
  void send(Peer& peer, FrameType type, std::string_view payload = {}) NORIA_REQUIRES(mutex_);
  // Sleeps until `is_over` or the deadline; true if over.
  template <class Predicate>
  bool wait_for(Nanoseconds deadline, Predicate is_over) NORIA_REQUIRES(mutex_);
  void wake_thread();

  // ---- control_thread.cc
  void run();
  void list_sockets(std::vector<pollfd>* sockets) NORIA_REQUIRES(mutex_);
  int poll_timeout_ms() NORIA_REQUIRES(mutex_);
  void serve_peer(int32_t rank) NORIA_REQUIRES(mutex_);
  void receive(int32_t rank) NORIA_REQUIRES(mutex_);
  void flush(Peer& peer) NORIA_REQUIRES(mutex_);
  void handle(int32_t rank, const Frame& frame) NORIA_REQUIRES(mutex_);
  void on_goodbye(int32_t rank) NORIA_REQUIRES(mutex_);
  enum class Loss { death, out_of_reach, nonsense };
  void lose(int32_t rank, const std::string& cause, Loss loss) NORIA_REQUIRES(mutex_);
  void tell_listener() NORIA_EXCLUDES(mutex_);
  void answer_question() NORIA_EXCLUDES(mutex_);
  void warn(const std::string& told) NORIA_REQUIRES(mutex_);
  void commit_pending() NORIA_REQUIRES(mutex_);
  bool is_flushed() NORIA_REQUIRES(mutex_);
  void close_all() NORIA_REQUIRES(mutex_);

  // ---- control_root.cc
  void accept_visitors() NORIA_REQUIRES(mutex_);
  void serve_visitors() NORIA_REQUIRES(mutex_);
  void admit(Visitor& visitor) NORIA_REQUIRES(mutex_);
  void hear(const Failure& failure) NORIA_REQUIRES(mutex_);
  void finish_join_if_complete() NORIA_REQUIRES(mutex_);
  void finish_gather_if_complete() NORIA_REQUIRES(mutex_);
  void answer_gather() NORIA_REQUIRES(mutex_);
  void start_survey(int32_t asker) NORIA_REQUIRES(mutex_);
  void take_answer(int32_t rank, const std::string& text) NORIA_REQUIRES(mutex_);
  bool is_survey_over() NORIA_REQUIRES(mutex_);
  std::string survey_text() NORIA_REQUIRES(mutex_);
  void finish_survey() NORIA_REQUIRES(mutex_);
  void answer_pass() NORIA_REQUIRES(mutex_);
  void finish_leave_if_complete() NORIA_REQUIRES(mutex_);
  void rest_listener() NORIA_REQUIRES(mutex_);
  bool listener_rests() NORIA_REQUIRES(mutex_);
  Failure missing_at_join() NORIA_REQUIRES(mutex_);
  Failure missing_at_gather(const std::string& what) NORIA_REQUIRES(mutex_);

  const Options options_;
  const Nanoseconds started_;
  const Fd wake_;           // eventfd
  std::string local_host_;  // set once before wait_until_joined() returns

  Mutex mutex_;
  CondVar changed_;  // joined_, gathered_, failed_, all_said_goodbye_
  Fd listener_ NORIA_GUARDED_BY(mutex_);
  // Out of descriptors: nobody can come in, and a listener with callers would wake the thread
  // without end. 0: it was never so.
  Nanoseconds listener_rests_until_ NORIA_GUARDED_BY(mutex_) = 0;
  std::list<Visitor> visitors_ NORIA_GUARDED_BY(mutex_);
  std::vector<Peer> peers_ NORIA_GUARDED_BY(mutex_);
  bool joined_ NORIA_GUARDED_BY(mutex_) = false;
  std::optional<std::vector<std::string>> gathered_ NORIA_GUARDED_BY(mutex_);
  // The exchange that this rank waits in; not on rank 0.
  std::optional<Put> waits_in_ NORIA_GUARDED_BY(mutex_);
  bool said_goodbye_ NORIA_GUARDED_BY(mutex_) = false;
  bool all_said_goodbye_ NORIA_GUARDED_BY(mutex_) = false;
  Failure failure_ NORIA_GUARDED_BY(mutex_){NORIA_OK, {}};
  // Announced to rank 0, whose verdict is due; on rank 0, waiting for better news. Then it counts
  // as it is.
  std::optional<Failure> pending_ NORIA_GUARDED_BY(mutex_);
  Nanoseconds pending_until_ NORIA_GUARDED_BY(mutex_) = kNever;
  std::optional<Survey> survey_ NORIA_GUARDED_BY(mutex_);
  bool is_asked_ NORIA_GUARDED_BY(mutex_) = false;  // a question waits for this rank's answer
  std::string stall_ NORIA_GUARDED_BY(mutex_);      // what this rank asked around for
  // Until when rank 0 has time to tell what the others answered.
  Nanoseconds told_until_ NORIA_GUARDED_BY(mutex_) = kNever;
  bool told_listener_ NORIA_GUARDED_BY(mutex_) = false;
  bool stopping_ NORIA_GUARDED_BY(mutex_) = false;
  Nanoseconds stop_until_ NORIA_GUARDED_BY(mutex_) = kNever;
  std::atomic<bool> failed_{false};

  Mutex callback_mutex_;  // held during the call; taken before mutex_
  std::function<void()> callback_ NORIA_GUARDED_BY(callback_mutex_);
  std::function<std::string()> answer_ NORIA_GUARDED_BY(callback_mutex_);

  OwnThread thread_;                                          // it uses all of the above
  const ForkWatch fork_watch_{[this] { close_in_child(); }};  // last: it may be called at any time
};

}  // namespace noria::bucketing
