// What only rank 0 does: it lets ranks in, matches their gathers and says who is missing.
#include <sys/socket.h>

#include <cerrno>

#include "base/log.hpp"
#include "bucketing/control_state.hpp"
#include "bucketing/tcp.hpp"

namespace noria::bucketing {
namespace {

// A caller says hello as soon as it is connected, so that one that says nothing is a stranger, and
// may hold a descriptor for so long. More callers than this at once: the oldest goes first.
constexpr Nanoseconds kVisitorPatience = 5_s;
constexpr size_t kMaxVisitors = 256;
// Taken in at a time, and heard before the next: so that of a thousand ranks that come at once none
// is the oldest that goes.
constexpr size_t kVisitorsATurn = 64;
// Until rank 0 tries again after it had no descriptor for a caller.
constexpr Nanoseconds kListenerRest = 100_ms;

bool is_ours(const Hello& hello, const ControlPlane::Options& options) {
  return hello.magic == kControlMagic && hello.token_low == options.token_low &&
         hello.token_high == options.token_high;
}

// Empty when the caller may become a rank.
std::string refusal(const Hello& hello, const ControlPlane::Options& options) {
  const std::string caller = "rank " + std::to_string(hello.rank);
  if (hello.version != kControlVersion)
    return caller + " speaks control version " + std::to_string(hello.version) +
           ", rank 0 speaks " + std::to_string(kControlVersion) +
           ": use the same noria on all ranks";
  if (hello.size != options.size)
    return caller + " was started as one of " + std::to_string(hello.size) +
           " ranks, rank 0 as one of " + std::to_string(options.size) +
           ": start all with the same size";
  if (hello.rank < 1 || hello.rank >= options.size)
    return caller + " called rank 0, which expects the ranks 1 to " +
           std::to_string(options.size - 1);
  return {};
}

void refuse(const Fd& caller, const Failure& why) {
  PayloadWriter payload;
  payload.put_i32(why.code);
  payload.put_text(why.text);
  const std::string frame = encode_frame(FrameType::failure, payload.bytes());
  static_cast<void>(::send(caller.get(), frame.data(), frame.size(), MSG_NOSIGNAL));
}

}  // namespace

void ControlPlane::State::accept_visitors() {
  for (size_t taken = 0; taken < kVisitorsATurn; ++taken) {
    Visitor visitor{accept_from(listener_), {}, now_ns()};
    if (!visitor.socket.is_open()) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) return;
      // Out of descriptors: strangers hold them, so that the oldest must go for a rank to come in.
      if (visitors_.empty()) return rest_listener();
      visitors_.pop_front();
      return;
    }
    tune(visitor.socket);
    if (visitors_.size() >= kMaxVisitors) visitors_.pop_front();
    visitors_.push_back(std::move(visitor));
  }
}

void ControlPlane::State::rest_listener() {
  if (listener_rests_until_ == 0)
    log(LogLevel::warn,
        "rank 0 cannot let a caller in: %s; raise its limit of open files (ulimit -n)",
        std::strerror(errno));
  listener_rests_until_ = now_ns() + kListenerRest;
}

bool ControlPlane::State::listener_rests() { return now_ns() < listener_rests_until_; }

void ControlPlane::State::serve_visitors() {
  const Nanoseconds now = now_ns();
  for (auto visitor = visitors_.begin(); visitor != visitors_.end();) {
    char bytes[sizeof(Hello)];
    const size_t wanted = sizeof(Hello) - visitor->hello.size();
    const ssize_t got = ::recv(visitor->socket.get(), bytes, wanted, 0);
    const bool is_empty = got < 0 && (errno == EAGAIN || errno == EINTR);
    if (got > 0) visitor->hello.append(bytes, static_cast<size_t>(got));
    if (visitor->hello.size() == sizeof(Hello)) admit(*visitor);
    if (visitors_.empty()) return;  // the list is gone
    const bool is_over = visitor->hello.size() == sizeof(Hello) || (got <= 0 && !is_empty) ||
                         now - visitor->since > kVisitorPatience;
    visitor = is_over ? visitors_.erase(visitor) : std::next(visitor);
  }
}

void ControlPlane::State::admit(Visitor& visitor) {
  Hello hello;
  std::memcpy(&hello, visitor.hello.data(), sizeof hello);
  if (!is_ours(hello, options_)) {
    log(LogLevel::info, "rank 0: dropped a stranger at the control port");
    return;
  }
  // Who comes after a failure hears of it: once accepted, it would take our end for the cause.
  if (failed()) return refuse(visitor.socket, failure_);
  std::string why_not = refusal(hello, options_);
  if (why_not.empty() && peers_[static_cast<size_t>(hello.rank)].has_joined)
    why_not = "two processes were started as rank " + std::to_string(hello.rank) + " of " +
              std::to_string(options_.size) + ": give each its own rank";
  if (!why_not.empty()) {
    // The caller is no rank, so that the fan-out does not reach it.
    refuse(visitor.socket, {NORIA_E_MISMATCH, why_not});
    visitors_.clear();
    commit({NORIA_E_MISMATCH, why_not});
    return;
  }
  Peer& peer = peers_[static_cast<size_t>(hello.rank)];
  if (local_host_.empty()) local_host_ = local_address(visitor.socket).host();
  peer.socket = std::move(visitor.socket);
  peer.has_joined = true;
  send(peer, FrameType::accepted);
  finish_join_if_complete();
}

void ControlPlane::State::finish_join_if_complete() {
  for (size_t rank = 1; rank < peers_.size(); ++rank)
    if (!peers_[rank].has_joined) return;
  // First the door, then the news: a rank that goes on to its next communicator must not find this
  // listener in the next one's place.
  listener_.reset();
  visitors_.clear();
  joined_ = true;
  for (Peer& peer : peers_) send(peer, FrameType::welcome);
  changed_.notify_all();
}

// A rank whose neighbour hung up knows the consequence. The cause (an abort, the death of a third
// rank) may still lie unread in another socket.
void ControlPlane::State::hear(const Failure& failure) {
  const bool is_hearsay = failure.code == NORIA_E_PEER || failure.code == NORIA_E_NET;
  const bool is_timeout = failure.code == NORIA_E_TIMEOUT;
  if (!is_hearsay && !is_timeout) return commit(failure);
  if (pending_) return;
  expect_verdict(failure, is_timeout ? kQuestion : kHearsay);
  if (is_timeout) start_survey(-1);
}

// ---- what ranks owe each other -----------------------------------------------------------------

// `asker` -1: what is pending is a time-out. A second one in the midst of it hears the same
// answers.
void ControlPlane::State::start_survey(int32_t asker) {
  if (failed()) return;
  if (!survey_) {
    survey_.emplace(Survey{});
    survey_->answers.resize(peers_.size());
    survey_->until = now_ns() + kQuestion;
    for (Peer& peer : peers_) send(peer, FrameType::question);
    is_asked_ = true;
  }
  if (asker >= 0) survey_->askers.push_back(asker);
  wake_thread();  // for this rank's own answer, and the timer
}

void ControlPlane::State::take_answer(int32_t rank, const std::string& text) {
  if (!survey_) return;
  survey_->answers[static_cast<size_t>(rank)] = text;
  if (is_survey_over()) finish_survey();
}

bool ControlPlane::State::is_survey_over() {
  if (now_ns() >= survey_->until) return true;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const bool may_answer = rank == 0 || peers_[rank].socket.is_open();
    if (may_answer && !survey_->answers[rank]) return false;
  }
  return true;
}

// "; rank 1 has not given 'a'; rank 2 has no collective under way". Long lists are cut.
std::string ControlPlane::State::survey_text() {
  constexpr size_t kShown = 4;
  std::string text;
  size_t owing = 0;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    const auto& answer = survey_->answers[rank];
    // Whoever came to a gather waits for the others in it.
    if ((answer && answer->empty()) || !peers_[rank].puts.empty()) continue;
    if (++owing > kShown) continue;
    text += "; rank " + std::to_string(rank) + ' ' +
            (answer ? *answer : "did not say what it waits for: is its process stopped?");
  }
  if (owing > kShown) text += "; and " + std::to_string(owing - kShown) + " more ranks";
  return text;
}

void ControlPlane::State::finish_survey() {
  const std::string text = survey_text();
  PayloadWriter payload;
  payload.put_text(text);
  for (const int32_t asker : survey_->askers)
    asker == 0 ? warn(text)
               : send(peers_[static_cast<size_t>(asker)], FrameType::told, payload.bytes());
  survey_.reset();
  if (!pending_ || pending_->code != NORIA_E_TIMEOUT) return;
  commit({NORIA_E_TIMEOUT, pending_->text + text});
}

Failure ControlPlane::State::missing_at_join() {
  std::vector<int32_t> missing;
  for (int32_t rank = 1; rank < options_.size; ++rank)
    if (!peers_[static_cast<size_t>(rank)].has_joined) missing.push_back(rank);
  return {NORIA_E_MISSING,
          ranks_text(missing) + " of " + std::to_string(options_.size) + " did not join within " +
              seconds_text(now_ns() - started_) + ": " +
              (listener_rests_until_ != 0
                   ? "rank 0 had no descriptor for a caller: raise its limit of "
                     "open files (ulimit -n)"
                   : "look whether they were started and reach " + options_.root_host + ":" +
                         std::to_string(options_.root_port) + ", or raise NORIA_START_TIMEOUT_MS")};
}

void ControlPlane::State::finish_gather_if_complete() {
  // Too late: what failed, or is about to, fails it on all ranks.
  if (failed() || (pending_ && pending_->code == NORIA_E_TIMEOUT)) return;
  const Put* first = nullptr;
  size_t first_rank = 0;
  bool is_complete = true;
  for (size_t rank = 0; rank < peers_.size(); ++rank) {
    if (peers_[rank].puts.empty()) {
      is_complete = false;
      continue;
    }
    const Put& put = peers_[rank].puts.front();
    if (first == nullptr) first = &put, first_rank = rank;
    if (put.what != first->what || put.kind != first->kind)
      return commit({NORIA_E_ORDER, "ranks are out of step: rank " + std::to_string(first_rank) +
                                        " is at '" + first->what + "', rank " +
                                        std::to_string(rank) + " at '" + put.what +
                                        "': all ranks must make the same calls in the same order"});
  }
  if (first == nullptr) return;
  if (!is_complete) {
    for (size_t rank = 1; rank < peers_.size(); ++rank)
      if (peers_[rank].said_goodbye && peers_[rank].puts.empty())
        return commit(
            left_while(static_cast<int32_t>(rank), static_cast<int32_t>(first_rank), first->what));
    return;
  }
  first->kind == Exchange::gather ? answer_gather() : answer_pass();
}

// Only here are all sizes known: a rank may give much where the others give next to nothing.
void ControlPlane::State::answer_gather() {
  uint64_t total = 0;
  for (const Peer& peer : peers_) total += sizeof(uint32_t) + peer.puts.front().bytes.size();
  if (total > kMaxFrameBytes) return commit(too_large(peers_[0].puts.front().what, total));
  PayloadWriter payload;
  std::vector<std::string> all;
  for (Peer& peer : peers_) {
    payload.put_text(peer.puts.front().bytes);
    all.push_back(std::move(peer.puts.front().bytes));
    peer.puts.pop_front();
  }
  for (Peer& peer : peers_) send(peer, FrameType::gather_all, payload.bytes());
  gathered_ = std::move(all);
  changed_.notify_all();
}

void ControlPlane::State::answer_pass() {
  std::vector<std::string> all;
  for (Peer& peer : peers_) {
    all.push_back(std::move(peer.puts.front().bytes));
    peer.puts.pop_front();
  }
  for (size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank].size() != all[0].size())
      return commit({NORIA_E_MISMATCH,
                     "rank " + std::to_string(rank) + " told " + std::to_string(all[rank].size()) +
                         " bytes of itself, rank 0 " + std::to_string(all[0].size()) +
                         ": use the same noria on all ranks"});
  for (size_t rank = 1; rank < all.size(); ++rank) {
    PayloadWriter payload;
    payload.put_text(all[rank - 1]);
    send(peers_[rank], FrameType::gather_all, payload.bytes());
  }
  gathered_ = {std::move(all.back())};
  changed_.notify_all();
}

Failure ControlPlane::State::missing_at_gather(const std::string& what) {
  std::vector<int32_t> missing;
  for (size_t rank = 0; rank < peers_.size(); ++rank)
    if (peers_[rank].puts.empty()) missing.push_back(static_cast<int32_t>(rank));
  return {NORIA_E_TIMEOUT, ranks_text(missing) + " did not come to '" + what +
                               "' in time: look what they are doing"};
}

void ControlPlane::State::finish_leave_if_complete() {
  if (!said_goodbye_ || all_said_goodbye_) return;
  for (size_t rank = 1; rank < peers_.size(); ++rank)
    if (!peers_[rank].said_goodbye && peers_[rank].socket.is_open()) return;
  all_said_goodbye_ = true;
  for (Peer& peer : peers_) send(peer, FrameType::all_said_so);
  changed_.notify_all();
}

}  // namespace noria::bucketing
