// The control thread: it sleeps in poll(2) until a socket, a call or a timer has something for it.
#include <errno.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "base/value_text.hpp"
#include "bucketing/control_state.hpp"

namespace noria::bucketing {
namespace {

constexpr const char* kNoAnswer = "; rank 0 did not answer: is its process stopped?";

}  // namespace

void ControlPlane::State::run() {
  std::vector<pollfd> sockets;
  while (true) {
    int timeout_ms = -1;
    {
      const MutexLock lock(mutex_);
      if (stopping_ && (is_flushed() || now_ns() >= stop_until_)) return close_all();
      list_sockets(&sockets);
      timeout_ms = poll_timeout_ms();
    }
    // A failing poll (no memory) is like a time-out: the loop looks at everything.
    if (::poll(sockets.data(), sockets.size(), timeout_ms) < 0 && errno != EINTR) sched_yield();
    {
      const MutexLock lock(mutex_);
      uint64_t count = 0;
      if (::read(wake_.get(), &count, sizeof count) < 0 && errno != EAGAIN) return close_all();
      if (listener_.is_open()) {
        if (!listener_rests()) accept_visitors();
        serve_visitors();
      }
      for (int32_t rank = 0; rank < options_.size; ++rank) serve_peer(rank);
      if (survey_ && is_survey_over()) finish_survey();
      if (now_ns() >= told_until_) warn(kNoAnswer);
      if (pending_ && now_ns() >= pending_until_) commit_pending();
    }
    answer_question();
    tell_listener();
  }
}

void ControlPlane::State::list_sockets(std::vector<pollfd>* sockets) {
  sockets->clear();
  const auto add = [&](const Fd& fd, bool wants_to_send) {
    const int events = POLLIN | (wants_to_send ? POLLOUT : 0);
    if (fd.is_open()) sockets->push_back({fd.get(), static_cast<short>(events), 0});
  };
  add(wake_, false);
  if (!listener_rests()) add(listener_, false);
  for (const Visitor& visitor : visitors_) add(visitor.socket, false);
  for (const Peer& peer : peers_) add(peer.socket, !peer.out.empty());
}

int ControlPlane::State::poll_timeout_ms() {
  // Only what is waited for just now has a timer; an idle control plane sleeps without one.
  Nanoseconds due = std::min({pending_until_, stop_until_, told_until_});
  if (survey_) due = std::min(due, survey_->until);
  if (!visitors_.empty()) due = std::min(due, now_ns() + 1_s);
  if (listener_rests()) due = std::min(due, listener_rests_until_);
  if (due == kNever) return -1;
  return static_cast<int>(std::max<Nanoseconds>(0, due - now_ns()) / 1'000'000 + 1);
}

void ControlPlane::State::serve_peer(int32_t rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  if (!peer.socket.is_open()) return;
  flush(peer);
  receive(rank);
}

void ControlPlane::State::flush(Peer& peer) {
  // A failed send shows at the next receive, together with what the peer sent before it went. With
  // nothing to send there is none: it would take away the error that receive() is to name.
  if (peer.out.empty()) return;
  const ssize_t sent = ::send(peer.socket.get(), peer.out.data(), peer.out.size(), MSG_NOSIGNAL);
  if (sent > 0) peer.out.erase(0, static_cast<size_t>(sent));
}

void ControlPlane::State::receive(int32_t rank) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  char bytes[65536];
  ssize_t got = 0;
  // What arrived with the hello lies in the parser already, so that it is asked first.
  do {
    while (auto frame = peer.parser.next()) {
      handle(rank, *frame);
      if (!peer.socket.is_open()) return;
    }
    if (peer.parser.is_malformed())
      return lose(rank, "sent a control message that is none", Loss::nonsense);
    got = ::recv(peer.socket.get(), bytes, sizeof bytes, 0);
    if (got > 0) peer.parser.append({bytes, static_cast<size_t>(got)});
  } while (got > 0);
  if (got == 0) return lose(rank, "its control connection closed", Loss::death);
  if (errno == EAGAIN || errno == EINTR) return;
  const bool is_out_of_reach = errno == ETIMEDOUT || errno == EHOSTUNREACH || errno == ENETUNREACH;
  lose(rank, std::string("its control connection broke: ") + std::strerror(errno),
       is_out_of_reach ? Loss::out_of_reach : Loss::death);
}

void ControlPlane::State::lose(int32_t rank, const std::string& cause, Loss loss) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  peer.socket.reset();
  peer.out.clear();
  if (!peer.said_goodbye && !stopping_) {
    const std::string name = "rank " + std::to_string(rank);
    const std::string when = joined_ ? "" : " while the ranks were joining";
    switch (loss) {
      case Loss::death:
        commit({NORIA_E_PEER,
                name + " died" + when + " (" + cause + "): look at its own output for the reason"});
        break;
      case Loss::out_of_reach:
        commit({NORIA_E_PEER, name + " is out of reach" + when + " (" + cause +
                                  "): look at its host and at the network between"});
        break;
      case Loss::nonsense:
        commit({NORIA_E_PEER,
                name + " " + cause + when + ": is another program using this job's token?"});
        break;
    }
  }
  if (is_root())
    finish_leave_if_complete();
  else if (pending_)
    commit(Failure(*pending_));
  changed_.notify_all();
}

// Time is up for rank 0's word, or for better news.
void ControlPlane::State::commit_pending() {
  Failure failure = *pending_;
  if (!is_root() && failure.code == NORIA_E_TIMEOUT) failure.text += kNoAnswer;
  commit(failure);
}

void ControlPlane::State::handle(int32_t rank, const Frame& frame) {
  Peer& peer = peers_[static_cast<size_t>(rank)];
  PayloadReader payload(frame.payload);
  switch (frame.type) {
    case FrameType::failure: {
      const int32_t code = payload.take_i32();
      const std::string text = payload.take_text();
      // What is no failure must not become one that reads as success.
      if (!payload.is_good() || code > NORIA_E_ARG || code < NORIA_E_INTERNAL) break;
      return is_root() ? hear({code, printable(text)}) : commit({code, printable(text)});
    }
    case FrameType::goodbye: return on_goodbye(rank);
    case FrameType::gather_put:
    case FrameType::pass_put: {
      const std::string what = payload.take_text();
      const std::string bytes = payload.take_text();
      if (!payload.is_good() || !is_root()) break;
      const bool is_pass = frame.type == FrameType::pass_put;
      peer.puts.push_back({what, bytes, is_pass ? Exchange::pass : Exchange::gather});
      return finish_gather_if_complete();
    }
    case FrameType::late:
      if (!is_root()) break;
      if (!joined_) return commit(missing_at_join());
      // With the answer already on its way there is nothing to say.
      if (!peer.puts.empty()) hear(missing_at_gather(frame.payload));
      return;
    case FrameType::gather_all: {
      const bool is_pass = waits_in_ && waits_in_->kind == Exchange::pass;
      std::vector<std::string> all;
      for (int32_t i = 0; i < (is_pass ? 1 : options_.size); ++i)
        all.push_back(payload.take_text());
      if (!payload.is_good() || !payload.is_at_end() || is_root()) break;
      gathered_ = std::move(all);
      return changed_.notify_all();
    }
    case FrameType::ask_around:
      if (!is_root()) break;
      return start_survey(rank);
    case FrameType::answer: {
      const std::string text = payload.take_text();
      if (!payload.is_good() || !is_root()) break;
      return take_answer(rank, printable(text));
    }
    case FrameType::question:
      if (is_root()) break;
      is_asked_ = true;
      return;
    case FrameType::told: {
      const std::string text = payload.take_text();
      if (!payload.is_good() || is_root()) break;
      // Once it was missed, it comes too late.
      if (told_until_ != kNever) warn(printable(text));
      return;
    }
    case FrameType::accepted:
    case FrameType::welcome:
    case FrameType::all_said_so:
      if (is_root()) break;
      joined_ = joined_ || frame.type == FrameType::welcome;
      if (frame.type == FrameType::all_said_so) all_said_goodbye_ = peer.said_goodbye = true;
      return changed_.notify_all();
  }
  lose(rank, "sent a control message that is none", Loss::nonsense);
}

void ControlPlane::State::on_goodbye(int32_t rank) {
  peers_[static_cast<size_t>(rank)].said_goodbye = true;
  if (is_root()) {
    finish_gather_if_complete();
    return finish_leave_if_complete();
  }
  // Nobody else can answer. What rank 0 answered before it left counts.
  if (waits_in_ && !gathered_) commit(left_while(rank, options_.rank, waits_in_->what));
}

void ControlPlane::State::tell_listener() {
  const MutexLock callback_lock(callback_mutex_);
  {
    const MutexLock lock(mutex_);
    if (!failed() || told_listener_) return;
    told_listener_ = true;
  }
  if (callback_) callback_();
}

void ControlPlane::State::answer_question() {
  {
    const MutexLock lock(mutex_);
    if (!std::exchange(is_asked_, false)) return;
  }
  std::string text;
  {
    const MutexLock callback_lock(callback_mutex_);
    if (answer_) text = answer_();
  }
  const MutexLock lock(mutex_);
  if (is_root()) return take_answer(0, text);
  PayloadWriter payload;
  payload.put_text(text);
  send(peers_[0], FrameType::answer, payload.bytes());
}

void ControlPlane::State::warn(const std::string& told) {
  told_until_ = kNever;
  log(LogLevel::warn, "rank %d: %s%s", options_.rank, stall_.c_str(), told.c_str());
}

bool ControlPlane::State::is_flushed() {
  return std::all_of(peers_.begin(), peers_.end(),
                     [](const Peer& peer) { return peer.out.empty() || !peer.socket.is_open(); });
}

void ControlPlane::State::close_all() {
  // Bytes left unread would turn the close into a reset, which may overtake what was just sent.
  for (Peer& peer : peers_) {
    if (!peer.socket.is_open()) continue;
    ::shutdown(peer.socket.get(), SHUT_WR);
    char bytes[4096];
    while (::recv(peer.socket.get(), bytes, sizeof bytes, 0) > 0) {
    }
    peer.socket.reset();
  }
  listener_.reset();
  visitors_.clear();
}

}  // namespace noria::bucketing
