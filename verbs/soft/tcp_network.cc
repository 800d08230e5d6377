#include "verbs/soft/tcp_network.hpp"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "verbs/soft/accept_failure.hpp"
#include "verbs/soft/engine.hpp"
#include "verbs/soft/tcp_initiator.hpp"
#include "verbs/soft/tcp_target.hpp"

namespace noria::soft {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

// A process answers a call with its service thread.
constexpr Nanoseconds kGreetingLimit = 5'000'000'000;
constexpr size_t kMostGreeting = 64;  // callers that have not said who they are
constexpr int kFramesAtOnce = 64;     // of one connection, before others have their turn
constexpr Nanoseconds kRest = 100'000'000;
// Who has polled so lately will again.
constexpr Nanoseconds kPolledLately = 200'000;

void add_to(int epoll, int fd, uint64_t id, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = id;
  if (::epoll_ctl(epoll, EPOLL_CTL_ADD, fd, &event) != 0)
    ::epoll_ctl(epoll, EPOLL_CTL_MOD, fd, &event);
}

uint64_t next_id() {
  static std::atomic<uint64_t> last{0};
  return last.fetch_add(1, kRelaxed) + 1;
}

}  // namespace

TcpConnection::TcpConnection(Fd fd, in_addr_t address_in, uint32_t slot_in, bool is_initiator_in)
    : stream(std::move(fd)),
      address(address_in),
      slot(slot_in),
      is_initiator(is_initiator_in),
      id(next_id()),
      greets_until_(now_ns() + kGreetingLimit) {}

TcpConnection::~TcpConnection() = default;

void TcpConnection::watch(uint32_t qpn) {
  const uint32_t index = index_of(qpn);
  const uint64_t bit = uint64_t{1} << index % 64;
  if ((watched_[index / 64].fetch_or(bit, kRelaxed) & bit) != 0) return;  // one of us says it
  stream.send(tcp::Watch{.qpn = qpn});
}

TcpNetwork::TcpNetwork(const Self& self) : self_(self), epoll_(::epoll_create1(EPOLL_CLOEXEC)) {}

TcpNetwork::~TcpNetwork() = default;

void TcpNetwork::watch_listener(bool is_on) {
  MutexLock lock(mutex_);
  if (listener_.is_open()) add_to(epoll_.get(), listener_.get(), kListener, is_on ? EPOLLIN : 0u);
}

int TcpNetwork::expect(in_addr_t own, in_addr_t other, uint32_t slot) {
  MutexLock lock(mutex_);
  const Expected process{other, slot};
  if (std::find(expected_.begin(), expected_.end(), process) == expected_.end())
    expected_.push_back(process);
  if (listener_.is_open()) return 0;
  const auto port = static_cast<uint16_t>(self_.port_base + self_.slot);
  listener_ = listen_tcp(own, port);
  if (!listener_.is_open()) {
    const int failure = errno;
    log(LogLevel::error,
        "software HCA: peers cannot call %s (errno %d); give all processes another "
        "NORIA_SOFT_PORT_BASE",
        address_text(own, port).c_str(), failure);
    return failure;
  }
  add_to(epoll_.get(), listener_.get(), kListener, EPOLLIN);
  return 0;
}

bool TcpNetwork::is_expected(in_addr_t address) {
  MutexLock lock(mutex_);
  return std::any_of(expected_.begin(), expected_.end(),
                     [address](const Expected& each) { return each.address == address; });
}

// Whether a caller that says who it is gets a place. A process has one connection in which it is
// the initiator: so there are no more than paths of ours name. One that has lost its own calls
// again; who has another cookie is another process, and waits until the first one has ended.
bool TcpNetwork::may_serve(const TcpConnection& connection, const tcp::Hello& hello) {
  MutexLock lock(mutex_);
  const Expected process{connection.address, hello.slot};
  if (std::find(expected_.begin(), expected_.end(), process) == expected_.end()) return false;
  for (const auto& each : connections_) {
    if (each->is_initiator || each->peer_ == nullptr || each->is_lost_.load(kRelaxed) ||
        each->address != process.address || each->peer_->identity().slot != process.slot)
      continue;
    const auto& cookie = each->peer_->identity().cookie;
    const bool is_same = std::equal(hello.cookie.begin(), hello.cookie.end(), cookie);
    if (!is_same && !each->stream.is_silent()) return false;
    lose(*each);
  }
  return true;
}

TcpConnection* TcpNetwork::add(std::unique_ptr<TcpConnection> connection) {
  TcpConnection* const added = connections_.emplace_back(std::move(connection)).get();
  // Edges: all that is there is taken at each, and the socket asked again before it is left.
  add_to(epoll_.get(), added->stream.fd(), added->id, EPOLLIN | EPOLLOUT | EPOLLET);
  changes_.fetch_add(1, std::memory_order_release);  // pairs with pump_locked()
  return added;
}

TcpNetwork::Called TcpNetwork::call(in_addr_t own, in_addr_t other, uint32_t slot) {
  MutexLock lock(mutex_);
  for (const auto& each : connections_) {
    if (!each->is_initiator || each->address != other || each->slot != slot ||
        each->is_lost_.load(kRelaxed))
      continue;
    Peer* const peer = each->ready_.load(std::memory_order_acquire);  // with admit()
    if (peer != nullptr) use(peer);
    return {peer, peer == nullptr};
  }
  Fd fd = call_tcp(own, other, static_cast<uint16_t>(self_.port_base + slot));
  if (!fd.is_open()) return {};
  TcpConnection* const connection =
      add(std::make_unique<TcpConnection>(std::move(fd), other, slot, true));
  connection->stream.send(tcp::Hello{
      .slot = self_.slot, .to_slot = slot, .cookie = {self_.cookie[0], self_.cookie[1]}});
  return {};
}

void TcpNetwork::use(Peer* peer) { peer->connection()->users_.fetch_add(1, kRelaxed); }

void TcpNetwork::done_with(Peer* peer) {
  peer->connection()->users_.fetch_sub(1, std::memory_order_release);  // with look_after()
}

TcpConnection* TcpNetwork::find(uint64_t id) {
  MutexLock lock(mutex_);
  for (const auto& each : connections_)
    if (each->id == id) return each.get();
  return nullptr;
}

void TcpNetwork::accept() {
  while (true) {
    TcpCaller caller;
    {
      MutexLock lock(mutex_);
      if (listener_.is_open()) caller = accept_tcp(listener_.get());
    }
    if (!caller.fd.is_open()) {
      const int failure = errno;
      if (!leaves_caller_waiting(failure)) return;
      log(LogLevel::warn,
          "no descriptor or no memory for a process that calls (errno %d): it waits; raise the "
          "limit "
          "of open files",
          failure);
      watch_listener(false);
      listens_again_ = now_ns() + kRest;
      return;
    }
    if (!is_expected(caller.address)) continue;
    MutexLock lock(mutex_);
    add(std::make_unique<TcpConnection>(std::move(caller.fd), caller.address, 0, false));
  }
}

void TcpNetwork::lose(TcpConnection& connection) {
  if (connection.is_lost_.exchange(true, kRelaxed)) return;
  connection.stream.close();  // which takes it out of epoll
  if (connection.peer_ != nullptr) connection.peer_->mark_dead();
}

bool TcpNetwork::admit(TcpConnection& connection, const TcpStream::Frame& frame) {
  tcp::Hello hello;
  if (!frame.is(&hello) || hello.magic != tcp::kMagic) return false;
  const bool is_slot = hello.slot > 0 && hello.slot < kSlots;
  if (hello.version != tcp::kVersion || !is_slot || hello.to_slot != self_.slot ||
      (connection.is_initiator && hello.slot != connection.slot)) {
    log(LogLevel::warn,
        "software HCA: the process in slot %u at %s means slot %u and version %u, not %u and %u: "
        "refused",
        hello.slot, address_text(connection.address, 0).c_str(), hello.to_slot, hello.version,
        self_.slot, tcp::kVersion);
    return false;
  }
  if (!connection.is_initiator && !may_serve(connection, hello)) return false;
  auto mirror = Segment::create();
  if (!mirror.is_ok()) return false;
  connection.mirror_ = std::make_unique<Segment>(std::move(mirror).value());
  connection.peer_ = Peer::over_tcp({hello.slot, 0, {hello.cookie[0], hello.cookie[1]}},
                                    **connection.mirror_, &connection, self_.doorbell);
  connection.stream.admit();
  if (!connection.is_initiator) {
    connection.target_ = std::make_unique<TcpTarget>(*self_.engine, connection, *connection.peer_,
                                                     *connection.mirror_);
    if (!connection.stream.send(tcp::Hello{.slot = self_.slot,
                                           .to_slot = hello.slot,
                                           .cookie = {self_.cookie[0], self_.cookie[1]}}))
      return false;
  }
  connection.ready_.store(connection.peer_.get(), std::memory_order_release);  // with call()
  return true;
}

bool TcpNetwork::handle(TcpConnection& connection, const TcpStream::Frame& frame) {
  if (connection.peer_ == nullptr) return admit(connection, frame);
  if (connection.target_ != nullptr) return connection.target_->handle(frame);
  tcp::Target target;
  if (frame.is(&target)) return take_target(**connection.mirror_, target);
  tcp::Answer answer;
  if (!frame.is(&answer)) return false;
  const Peer& peer = *connection.peer_;
  self_.engine->with_qp(answer.source.qpn, [&](Qp& qp) { on_answer(qp, peer, answer, frame); });
  return true;
}

void TcpNetwork::read(TcpConnection& connection) {
  for (int i = 0; i < kFramesAtOnce; ++i) {
    // Who does not take our answers gets no more of them.
    if (connection.target_ != nullptr && !connection.stream.can_send()) return;
    TcpStream::Frame frame;
    const TcpStream::Event event = connection.stream.receive(&frame);
    if (event == TcpStream::Event::nothing) {
      connection.is_readable_ = false;
      return;
    }
    if (event == TcpStream::Event::broken || !handle(connection, frame)) return lose(connection);
  }
  has_more_ = true;
}

void TcpNetwork::pump_locked() {
  has_more_ = false;
  constexpr int kBatch = 32;
  epoll_event events[kBatch];
  const int count = ::epoll_wait(epoll_.get(), events, kBatch, 0);
  for (int i = 0; i < count; ++i) {
    if (events[i].data.u64 == kListener) {
      accept();
      continue;
    }
    TcpConnection* const connection = find(events[i].data.u64);
    if (connection == nullptr || connection->is_lost_.load(kRelaxed)) continue;
    connection->is_readable_ = true;
    if (!connection->stream.flush()) lose(*connection);
  }
  // acquire: pairs with add().
  if (const uint64_t changes = changes_.load(std::memory_order_acquire); changes != seen_changes_) {
    MutexLock lock(mutex_);
    seen_changes_ = changes;
    current_.clear();
    for (const auto& each : connections_) current_.push_back(each.get());
  }
  changed_qps_.take([this](size_t word, uint64_t bits) NORIA_NO_THREAD_SAFETY_ANALYSIS {
    for (const TcpConnection* each : current_)
      if (each->target_ != nullptr) each->target_->note(word, bits);
  });
  for (TcpConnection* each : current_) {
    if (each->is_lost_.load(kRelaxed)) continue;
    if (each->is_readable_) read(*each);
    if (each->target_ != nullptr) each->target_->tell();
  }
}

bool TcpNetwork::is_polled(Nanoseconds now) const {
  return now - polled_at_.load(kRelaxed) < kPolledLately;
}

void TcpNetwork::pump(bool may_sleep) {
  if (!may_sleep) polled_at_.store(now_ns(), kRelaxed);
  if (!pump_.try_lock()) return;
  pump_locked();
  const bool has_more = has_more_;
  pump_.unlock();
  // Answers may be for queues that nobody polls.
  self_.engine->request_service(has_more ? Engine::kAtOnce : now_ns() + Engine::kTick);
}

// Lets go of what is over, and of who has not said who they are; when to look again.
Nanoseconds TcpNetwork::look_after(Nanoseconds now) {
  Nanoseconds next = kNever;
  size_t greeting = 0;
  MutexLock lock(mutex_);
  for (size_t i = connections_.size(); i-- > 0;) {  // from the youngest
    TcpConnection& each = *connections_[i];
    const bool is_greeting = each.peer_ == nullptr && !each.is_lost_.load(kRelaxed);
    // Whom we called ourselves is no stranger, however many those are.
    const bool is_too_many = is_greeting && !each.is_initiator && ++greeting > kMostGreeting;
    if (is_too_many || (is_greeting && now >= each.greets_until_)) lose(each);
    if (each.peer_ == nullptr && !each.is_lost_.load(kRelaxed))
      next = std::min(next, each.greets_until_);
    // acquire: pairs with done_with().
    if (!each.is_lost_.load(kRelaxed) || each.users_.load(std::memory_order_acquire) != 0) continue;
    connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i));
    changes_.fetch_add(1, std::memory_order_release);  // with pump_locked()
  }
  return next;
}

Nanoseconds TcpNetwork::tend() {
  const Nanoseconds now = now_ns();
  SpinGuard guard(pump_);
  if (listens_again_ <= now) {
    listens_again_ = kNever;
    watch_listener(true);
  }
  const Nanoseconds next = look_after(now);
  pump_locked();  // which may find that callers have to wait
  return has_more_ ? Engine::kAtOnce : std::min(next, listens_again_);
}

void TcpNetwork::close_all() {
  listener_.reset();
  for (const auto& each : connections_) ::close(each->stream.fd());
}

}  // namespace noria::soft
