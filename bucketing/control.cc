#include "bucketing/control.hpp"

#include <sys/eventfd.h>

#include <utility>

#include "bucketing/control_state.hpp"
#include "bucketing/tcp.hpp"

namespace noria::bucketing {

std::string seconds_text(Nanoseconds duration) {
  const Nanoseconds tenths = (duration + 50_ms) / 100_ms;
  const std::string whole = std::to_string(tenths / 10);
  return (tenths % 10 == 0 ? whole : whole + "." + std::to_string(tenths % 10)) + " s";
}

std::string ranks_text(const std::vector<int32_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank " : "ranks ";
  for (size_t i = 0; i < ranks.size(); ++i) text += (i > 0 ? ", " : "") + std::to_string(ranks[i]);
  return text;
}

Failure left_while(int32_t gone, int32_t waiting, const std::string& what) {
  return {NORIA_E_PEER, "rank " + std::to_string(gone) + " left the communicator while rank " +
                            std::to_string(waiting) + " is at '" + what + "'"};
}

Failure too_large(const std::string& what, uint64_t bytes) {
  return {NORIA_E_ARG, "'" + what + "': " + std::to_string(bytes) + " bytes are more than the " +
                           std::to_string(kMaxFrameBytes) + " that a control message may hold"};
}

// ---- the calls ----------------------------------------------------------------------------------

ControlPlane::ControlPlane(std::unique_ptr<State> state) : state_(std::move(state)) {}
ControlPlane::~ControlPlane() = default;
void ControlPlane::hang_up() { state_->hang_up(); }
int32_t ControlPlane::rank() const { return state_->options().rank; }
int32_t ControlPlane::size() const { return state_->options().size; }
const std::string& ControlPlane::local_host() const { return state_->local_host(); }
void ControlPlane::announce(const Failure& failure) { state_->announce(failure); }
Failure ControlPlane::settle(const Failure& failure) { return state_->settle(failure); }
bool ControlPlane::failed() const { return state_->failed(); }
Failure ControlPlane::failure() const { return state_->failure(); }
void ControlPlane::on_failure(std::function<void()> wake) { state_->on_failure(std::move(wake)); }
void ControlPlane::on_question(std::function<std::string()> answer) {
  state_->on_question(std::move(answer));
}
void ControlPlane::ask_around(const std::string& what) { state_->ask_around(what); }
void ControlPlane::leave(Nanoseconds deadline) { state_->leave(deadline); }
Outcome<std::vector<std::string>> ControlPlane::all_gather(const std::string& what,
                                                           const std::string& bytes,
                                                           Nanoseconds deadline) {
  return state_->all_gather(what, bytes, deadline);
}
Outcome<std::string> ControlPlane::pass_right(const std::string& what, const std::string& bytes,
                                              Nanoseconds deadline) {
  return state_->pass_right(what, bytes, deadline);
}

namespace {
// Rank 0 without a listener of a unique id.
Outcome<Fd> open_listener(const ControlPlane::Options& options) {
  auto addresses = resolve(options.root_host, options.root_port, options.deadline);
  if (!addresses) return Failure{NORIA_E_NET, "rank 0: " + addresses.failure()};
  TcpAddress numeric;
  const bool is_name = !parse_numeric(options.root_host, options.root_port, &numeric);
  std::string cause;
  for (const TcpAddress& address : *addresses) {
    // A name may mean the loopback here and the real interface elsewhere (/etc/hosts often says
    // so), so that rank 0 listens on all; the token keeps strangers out.
    auto opened = listen_on(is_name ? any_interface(address) : address);
    if (opened) return std::move(*opened);
    cause = opened.failure();
  }
  return Failure{NORIA_E_NET,
                 "rank 0: " + cause + "; choose a free port of this host in NORIA_ROOT"};
}
}  // namespace

Outcome<std::unique_ptr<ControlPlane>> ControlPlane::join(const Options& options) {
  Fd listener(options.rank == 0 ? options.listener_fd : -1);
  RootLink root;
  if (options.size > 1 && options.rank == 0 && !listener.is_open()) {
    NORIA_TRY_ASSIGN(listener, open_listener(options));
  }
  if (options.size > 1 && options.rank != 0) {
    NORIA_TRY_ASSIGN(root, connect_to_root(options, options.deadline - now_ns()));
  }
  auto state = std::make_unique<State>(options, std::move(listener), std::move(root));
  NORIA_TRY(state->start());
  NORIA_TRY(state->wait_until_joined());
  return std::unique_ptr<ControlPlane>(new ControlPlane(std::move(state)));
}

// ---- state --------------------------------------------------------------------------------------

ControlPlane::State::State(const Options& options, Fd listener, RootLink root)
    : options_(options),
      started_(now_ns()),
      wake_(::eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      listener_(std::move(listener)),
      peers_(static_cast<size_t>(options.size)) {
  if (root.socket.is_open()) {
    local_host_ = local_address(root.socket).host();
    peers_[0].socket = std::move(root.socket);
    peers_[0].parser = std::move(root.parser);
    peers_[0].has_joined = true;
    wake_thread();  // frames that came with `accepted` lie in the parser: poll(2) knows none of it
  }
  if (options_.size == 1) {
    joined_ = true;
    return;
  }
}

Outcome<Ok> ControlPlane::State::start() {
  if (options_.size == 1) return Ok{};
  const std::string user = "the control sockets of rank " + std::to_string(options_.rank);
  if (!wake_.is_open()) return no_descriptor(user);
  if (const int error = thread_.start([this] { run(); }); error != 0) return no_thread(user, error);
  return Ok{};
}

ControlPlane::State::~State() { hang_up(); }

// A child would keep them open when its parent is gone, and no rank would notice that death.
// Visitors are strangers still, and their list may be in the midst of a change.
void ControlPlane::State::close_in_child() NORIA_NO_THREAD_SAFETY_ANALYSIS {
  listener_.reset();
  for (Peer& peer : peers_) peer.socket.reset();
}

void ControlPlane::State::hang_up() {
  if (!thread_.is_joinable()) return;
  {
    const MutexLock lock(mutex_);
    say_goodbye();
    stopping_ = true;
    stop_until_ = now_ns() + 1_s;
  }
  wake_thread();
  thread_.join();
  const MutexLock lock(mutex_);
  commit({NORIA_E_ABORTED, "the communicator was destroyed"});
}

void ControlPlane::State::wake_thread() {
  const uint64_t one = 1;
  // Fails only when the counter is full: then the thread is about to wake anyway.
  if (::write(wake_.get(), &one, sizeof one) < 0) return;
}

template <class Predicate>
bool ControlPlane::State::wait_for(Nanoseconds deadline, Predicate is_over) {
  while (!is_over())
    if (!changed_.wait_until(mutex_, deadline)) return is_over();
  return true;
}

void ControlPlane::State::send(Peer& peer, FrameType type, std::string_view payload) {
  if (!peer.socket.is_open()) return;
  peer.out += encode_frame(type, payload);
  wake_thread();
}

void ControlPlane::State::commit(const Failure& failure) {
  if (failed()) return;
  failure_ = failure;
  // relaxed: whoever sees it takes the mutex before reading failure_.
  failed_.store(true, std::memory_order_relaxed);
  pending_.reset();
  pending_until_ = kNever;
  survey_.reset();
  told_until_ = kNever;
  if (is_root()) {
    PayloadWriter payload;
    payload.put_i32(failure.code);
    payload.put_text(failure.text);
    for (Peer& peer : peers_) send(peer, FrameType::failure, payload.bytes());
  }
  changed_.notify_all();
  wake_thread();  // it calls whoever asked to be told
}

Outcome<Ok> ControlPlane::State::wait_until_joined() {
  const MutexLock lock(mutex_);
  const auto is_over = [this]() NORIA_NO_THREAD_SAFETY_ANALYSIS { return joined_ || failed(); };
  if (!wait_for(options_.deadline, is_over)) {
    if (is_root()) {
      commit(missing_at_join());
    } else {
      send(peers_[0], FrameType::late);
      if (!wait_for(now_ns() + kVerdict, is_over))
        commit({NORIA_E_MISSING, "rank 0 accepted rank " + std::to_string(options_.rank) +
                                     " but then did not answer within " +
                                     seconds_text(now_ns() - started_) +
                                     ": is its process stopped?"});
    }
  }
  // A failure that came right after the welcome is for the next call to tell.
  if (!joined_) return failure_;
  return Ok{};
}

namespace {
// What a rank says in an exchange: two texts, each behind its length.
bool fits_message(const std::string& what, const std::string& bytes) {
  return what.size() + bytes.size() + 2 * sizeof(uint32_t) <= kMaxFrameBytes;
}
}  // namespace

Outcome<std::vector<std::string>> ControlPlane::State::all_gather(const std::string& what,
                                                                  const std::string& bytes,
                                                                  Nanoseconds deadline) {
  if (options_.size == 1) return std::vector<std::string>{bytes};
  if (!fits_message(what, bytes)) return settle(too_large(what, bytes.size()));
  return exchange({what, bytes, Exchange::gather}, deadline);
}

Outcome<std::string> ControlPlane::State::pass_right(const std::string& what,
                                                     const std::string& bytes,
                                                     Nanoseconds deadline) {
  if (options_.size == 1) return bytes;
  if (!fits_message(what, bytes)) return settle(too_large(what, bytes.size()));
  NORIA_TRY_ASSIGN(auto left, exchange({what, bytes, Exchange::pass}, deadline));
  return std::move(left.front());
}

Outcome<std::vector<std::string>> ControlPlane::State::exchange(const Put& mine,
                                                                Nanoseconds deadline) {
  const MutexLock lock(mutex_);
  if (failed()) return failure_;
  gathered_.reset();
  if (is_root()) {
    peers_[0].puts.push_back(mine);
    finish_gather_if_complete();
  } else {
    waits_in_ = Put{mine.what, {}, mine.kind};
    PayloadWriter payload;
    payload.put_text(mine.what);
    payload.put_text(mine.bytes);
    send(peers_[0], mine.kind == Exchange::gather ? FrameType::gather_put : FrameType::pass_put,
         payload.bytes());
    if (peers_[0].said_goodbye) on_goodbye(0);
  }
  const auto is_over = [this]() NORIA_NO_THREAD_SAFETY_ANALYSIS { return gathered_ || failed(); };
  if (!wait_for(deadline, is_over)) {
    if (is_root())
      hear(missing_at_gather(mine.what));
    else
      send(peers_[0], FrameType::late, mine.what);
    // Who did not come is asked why.
    if (!wait_for(now_ns() + kVerdict + kQuestion, is_over)) {
      if (is_root())
        commit(missing_at_gather(mine.what));
      else
        commit({NORIA_E_TIMEOUT,
                "'" + mine.what + "': rank 0 did not answer: is its process stopped?"});
    }
  }
  waits_in_.reset();
  if (!gathered_) return failure_;
  return std::move(*gathered_);
}

void ControlPlane::State::announce(const Failure& failure) {
  const MutexLock lock(mutex_);
  if (failed()) return;
  Peer& root = peers_[0];
  if (is_root()) {
    hear(failure);
  } else if (root.socket.is_open()) {
    if (pending_) return;
    PayloadWriter payload;
    payload.put_i32(failure.code);
    payload.put_text(failure.text);
    send(root, FrameType::failure, payload.bytes());
    expect_verdict(failure, kVerdict + (failure.code == NORIA_E_TIMEOUT ? kQuestion : 0));
  } else {
    commit(failure);
  }
  if (failure.code == NORIA_E_ABORTED) commit(failure);
}

void ControlPlane::State::expect_verdict(const Failure& failure, Nanoseconds patience) {
  pending_ = failure;
  pending_until_ = now_ns() + patience;
  wake_thread();  // for the timer
}

Failure ControlPlane::State::settle(const Failure& failure) {
  announce(failure);
  const MutexLock lock(mutex_);
  // The thread ends this wait; the deadline is for a thread that does not run.
  if (!wait_for(now_ns() + 2 * (kVerdict + kQuestion), [this] { return failed(); })) return failure;
  return failure_;
}

Failure ControlPlane::State::failure() {
  const MutexLock lock(mutex_);
  return failure_;
}

void ControlPlane::State::on_failure(std::function<void()> wake) {
  const MutexLock callback_lock(callback_mutex_);
  callback_ = std::move(wake);
  const MutexLock lock(mutex_);
  told_listener_ = false;
  if (failed()) wake_thread();
}

void ControlPlane::State::on_question(std::function<std::string()> answer) {
  const MutexLock callback_lock(callback_mutex_);
  answer_ = std::move(answer);
}

void ControlPlane::State::ask_around(const std::string& what) {
  const MutexLock lock(mutex_);
  if (failed()) return;
  stall_ = what;
  if (is_root()) return start_survey(0);
  told_until_ = now_ns() + kVerdict + kQuestion;
  send(peers_[0], FrameType::ask_around);
}

void ControlPlane::State::say_goodbye() {
  said_goodbye_ = true;
  for (Peer& peer : peers_) send(peer, FrameType::goodbye);
  if (is_root()) finish_leave_if_complete();
}

void ControlPlane::State::leave(Nanoseconds deadline) {
  if (options_.size == 1) return;
  const MutexLock lock(mutex_);
  if (failed() || said_goodbye_) return;
  // Rank 0 speaks last: its goodbye is the news that all are done.
  if (is_root()) {
    said_goodbye_ = true;
    finish_leave_if_complete();
  } else {
    say_goodbye();
  }
  wait_for(deadline, [this]() NORIA_NO_THREAD_SAFETY_ANALYSIS {
    return all_said_goodbye_ || failed() || !(is_root() || peers_[0].socket.is_open());
  });
}

}  // namespace noria::bucketing
