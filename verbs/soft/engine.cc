#include "verbs/soft/engine.hpp"

#include <errno.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "verbs/soft/address.hpp"
#include "verbs/soft/async_events.hpp"
#include "verbs/soft/bind_target.hpp"
#include "verbs/soft/device_time.hpp"
#include "verbs/soft/shared_receives.hpp"

namespace noria::soft {
namespace {

Fd make_event() { return Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)); }

}  // namespace

std::unique_ptr<Engine> Engine::start(const Params& params,
                                      const std::vector<SoftDevice>& devices) {
  std::unique_ptr<Engine> engine(new Engine(params));
  engine->faults_ = Faults::make(params.soft_faults, devices);
  errno = 0;
  const bool has_ports = engine->open_ports(devices);
  if (has_ports && engine->set_up(devices)) return engine;
  const int error = errno != 0 ? errno : ENODEV;
  if (has_ports)
    log(LogLevel::error,
        "software HCA: cannot start: %s; it needs memfd, eventfd, timerfd, a thread "
        "and abstract unix sockets",
        std::strerror(error));
  engine.reset();
  errno = error;
  return nullptr;
}

bool Engine::open_ports(const std::vector<SoftDevice>& devices) {
  for (const SoftDevice& device : devices) {
    const double rate = device.shape_gbit != 0 ? device.shape_gbit : params_.soft_rate_gbit;
    shapers_.emplace_back(rate, params_.soft_latency_us);
    max_messages_.push_back(device.max_message);
    is_shaped_ = is_shaped_ || shapers_.back().is_on();
    const bool is_own = device.host.empty() || is_time_standing();
    auto port = join_port(is_own ? "" : device.host + "/" + device.name);
    if (!port.is_ok()) {
      log(LogLevel::error, "software HCA: %s", port.failure().c_str());
      return false;
    }
    ports_.push_back(std::move(port).value());
  }
  return true;
}

bool Engine::set_up(const std::vector<SoftDevice>& devices) {
  auto segment = Segment::create();
  if (!segment.is_ok()) return false;
  segment_ = std::make_unique<Segment>(std::move(segment).value());
  doorbell_ = make_event();
  SharedHeader& header = (*segment_)->header;
  slot_ = 1;
  header.cookie[0] = 1;  // of a process whose runs are all the same
  if (!doorbell_.is_open() || (!is_time_standing() && !join_host())) return false;
  header.cookie_address = reinterpret_cast<uint64_t>(header.cookie);
  header.magic = kSegmentMagic;
  header.version = kLayoutVersion;
  header.slot = slot_;
  header.segment_bytes = sizeof(SharedSegment);
  for (size_t i = 0; i < devices.size(); ++i) header.addresses[i] = address_of(devices[i]);

  memory_ = std::make_unique<MemoryTable>(**segment_);
  Neighbours::Self self;
  self.identity = {slot_, ::getpid(), {header.cookie[0], header.cookie[1]}};
  self.listener = listener_.get();
  self.segment = segment_->fd();
  self.doorbell = doorbell_.get();
  self.may_attach = params_.soft_copy == "auto" || params_.soft_copy == "cma";
  self.pidfd = pidfd_.get();
  self.epoll = epoll_.get();
  neighbours_ = std::make_unique<Neighbours>(self, **segment_, ports_, *memory_);
  return is_time_standing() || start_thread();
}

// What other processes of the host know us by.
bool Engine::join_host() {
  // Start at a slot of our own, so that a slot is not taken again right after its owner died.
  auto claimed = claim_slot(static_cast<uint32_t>(::getpid()));
  if (!claimed.is_ok()) return false;
  slot_ = claimed->slot;
  listener_ = std::move(claimed->listener);
  pidfd_ = Fd(static_cast<int>(::syscall(SYS_pidfd_open, ::getpid(), 0)));
  epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
  timer_ = Fd(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!epoll_.is_open() || !timer_.is_open()) return false;
  // Peers of the same user may attach although they are not our ancestors (Yama).
  ::prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
  SharedHeader& header = (*segment_)->header;
  return ::getrandom(header.cookie, sizeof header.cookie, 0) == sizeof header.cookie;
}

bool Engine::start_thread() {
  watch(epoll_.get(), listener_.get(), Watched::listener);
  for (const SharedPort& port : ports_)
    if (port.listener.is_open()) watch(epoll_.get(), port.listener.get(), Watched::port);
  watch(epoll_.get(), doorbell_.get(), Watched::doorbell);
  watch(epoll_.get(), timer_.get(), Watched::timer);
  errno = thread_.start([this] { run(); });
  return errno == 0;
}

Engine::~Engine() {
  if (!thread_.is_joinable()) return;
  is_stopping_.store(true, std::memory_order_release);  // pairs with run()
  signal_event(doorbell_.get());
  thread_.join();
}

void Engine::done_with(Peer* peer) {
  if (peer->connection() != nullptr)
    TcpNetwork::done_with(peer);
  else
    neighbours_->done_with(peer);
}

const char* Engine::copy_path() const {
  if (params_.soft_copy == "tcp") return "over TCP";
  if (params_.soft_copy == "shm") return "through shared memory";
  // Ourselves we may always touch, unless the system call as such is forbidden.
  uint64_t word = 0, copied = 0;
  const iovec from{&word, sizeof word}, to{&copied, sizeof copied};
  if (::process_vm_readv(::getpid(), &to, 1, &from, 1, 0) == sizeof word)
    return "cross-memory attach";
  return may_ask_ ? "through shared memory (cross-memory attach is forbidden)"
                  : "cross-memory attach, which is forbidden here: unset NORIA_SOFT_COPY";
}

// ---- registries ---------------------------------------------------------------------------------

Qp* Engine::add_qp(ibv_pd* pd, uint32_t pd_number, const ibv_qp_init_attr& init) {
  MutexLock lock(registry_);
  reclaim_rings();
  for (uint32_t i = 0; i < kMaxQps; ++i) {
    const uint32_t index = (next_qp_ + i) % kMaxQps;  // an index rests before it is used again
    if (qps_[index] != nullptr) continue;
    next_qp_ = index + 1;
    SharedSegment& segment = shared();
    SharedQp& entry = segment.qps[index];
    // relaxed: ours alone. Generations of two processes in one slot must differ.
    if (entry.state.load(std::memory_order_relaxed) == 0)
      entry.state.store(make_state(static_cast<uint32_t>(segment.header.cookie[0] & 0x7fffffff), 0),
                        std::memory_order_relaxed);
    // seq_cst: a fence that does not see the bit comes before our first mark, and before what we
    // look at after it; pairs with wait_unmarked().
    segment.header.qps_in_use[index / 64].fetch_or(1ull << index % 64, std::memory_order_seq_cst);
    qps_[index] = std::make_unique<Qp>(*this, entry, index, pd, init);
    qps_[index]->pd_number = pd_number;
    qps_[index]->max_message = max_messages_[device_of(pd_number)];
    return qps_in_use_.emplace_back(qps_[index].get());
  }
  return nullptr;
}

void Engine::remove_qp(Qp* qp) {
  MutexLock lock(registry_);
  resting_.push_back(qp->index);
  moved_before_[device_of(qp->pd_number)] += qp->moved_in_all.now();
  taken_before_[device_of(qp->pd_number)] += qp->taken.now();
  std::erase(qps_in_use_, qp);
  shared().header.qps_in_use[qp->index / 64].fetch_and(~(1ull << qp->index % 64),
                                                       std::memory_order_release);
  qps_[qp->index].reset();
  reclaim_rings();
}

Moved Engine::moved(uint32_t device) {
  MutexLock lock(registry_);
  Moved sum = moved_before_[device];
  for (const Qp* qp : qps_in_use_)
    if (device_of(qp->pd_number) == device) sum += qp->moved_in_all.now();
  return sum;
}

Moved Engine::taken(uint32_t device) {
  MutexLock lock(registry_);
  Moved sum = taken_before_[device];
  for (const Qp* qp : qps_in_use_)
    if (device_of(qp->pd_number) == device) sum += qp->taken.now();
  return sum;
}

// Gives the rings back of queue pairs that are gone, once their targets have read them.
void Engine::reclaim_rings() {
  std::erase_if(resting_, [this](uint32_t index) NORIA_NO_THREAD_SAFETY_ANALYSIS {
    if (qps_[index] != nullptr) return true;  // it has a new owner
    SharedQp& entry = shared().qps[index];
    if (!is_drained(*this, entry)) return false;
    entry.ring_to.store(0, std::memory_order_release);  // with is_source_bound()
    release_ring(index);
    return true;
  });
}

Cq* Engine::add_cq(uint32_t depth, Channel* channel) {
  MutexLock lock(queues_);
  for (uint32_t i = 0; i < kMaxCqs; ++i) {
    if (cqs_[i] != nullptr) continue;
    SharedCq& entry = shared().cqs[i];
    cqs_[i] = std::make_unique<Cq>(*this, entry, i, depth, channel);
    return cqs_in_use_.emplace_back(cqs_[i].get());
  }
  return nullptr;
}

void Engine::remove_cq(Cq* cq) {
  MutexLock lock(queues_);
  std::erase(cqs_in_use_, cq);
  cqs_[cq->index].reset();
}

Channel* Engine::add_channel() {
  // Blocking, as an application expects of a new channel; it may change that.
  Fd fd(::eventfd(0, EFD_CLOEXEC));
  if (!fd.is_open()) return nullptr;
  Channel* added = nullptr;
  {
    MutexLock lock(queues_);
    const auto free = std::find(channels_.begin(), channels_.end(), nullptr);
    if (free == channels_.end()) {
      errno = ENOMEM;
      return nullptr;
    }
    *free = std::make_unique<Channel>();
    added = free->get();
    added->engine = this;
    added->fd = fd.release();
    added->id = channel_serial_++ * kMaxChannels + static_cast<uint32_t>(free - channels_.begin());
  }
  neighbours_->announce_channel(added->id, added->fd);
  return added;
}

void Engine::remove_channel(Channel* channel) {
  neighbours_->withdraw_channel(channel->id);
  ::close(channel->fd);
  MutexLock lock(queues_);
  channels_[channel->id % kMaxChannels].reset();
}

bool Engine::is_empty() {
  MutexLock lock(registry_);
  MutexLock queues(queues_);
  const auto is_set = [](const auto& each) { return each != nullptr; };
  return qps_in_use_.empty() && cqs_in_use_.empty() &&
         std::none_of(channels_.begin(), channels_.end(), is_set);
}

uint64_t Engine::carve(uint64_t bytes) {
  MutexLock lock(carve_);
  return segment_->carve(bytes);
}

void Engine::release(uint64_t offset, uint64_t bytes) {
  MutexLock lock(carve_);
  segment_->release(offset, bytes);
}

uint64_t Engine::ring_room(uint32_t index, uint64_t bytes) {
  MutexLock lock(carve_);
  RingRoom& room = ring_rooms_[index];
  if (room.offset != Segment::kNoRoom) segment_->release(room.offset, room.bytes);
  room = RingRoom{segment_->carve(bytes), bytes};
  return room.offset;
}

void Engine::release_ring(uint32_t index) {
  MutexLock lock(carve_);
  RingRoom& room = ring_rooms_[index];
  if (room.offset != Segment::kNoRoom) segment_->release(room.offset, room.bytes);
  room = RingRoom{};
}

// ---- the service thread -------------------------------------------------------------------------

void Engine::request_service(Nanoseconds by) {
  // Either the service thread's next look sees the work, or we see that it looks too late.
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with run()
  if (next_look_.load(std::memory_order_relaxed) <= by) return;
  SpinGuard guard(timer_lock_);
  if (next_look_.load(std::memory_order_relaxed) > by) set_timer(by);
}

void Engine::run() {
  pthread_setname_np(pthread_self(), "noria-soft");
  while (!is_stopping_.load(std::memory_order_acquire)) {  // with ~Engine()
    const Nanoseconds next = look_round();
    {
      SpinGuard guard(timer_lock_);
      if (next < next_look_.load(std::memory_order_relaxed)) set_timer(next);
    }
    constexpr int kBatch = 16;
    epoll_event events[kBatch];
    const int count = ::epoll_wait(epoll_.get(), events, kBatch, -1);
    for (int i = 0; i < count; ++i) handle(events[i].data.u64);
    if (neighbours_->take_loss()) tell_losses();
  }
}

// Looks after all that waits for a time; when it must be next.
Nanoseconds Engine::look_round() {
  {
    SpinGuard guard(timer_lock_);
    next_look_.store(kNever, std::memory_order_relaxed);
  }
  std::atomic_thread_fence(std::memory_order_seq_cst);  // pairs with request_service()
  const Nanoseconds ports = faults_ != nullptr ? faults_->tend(*this, device_now()) : kNever;
  const Nanoseconds tcp = tend_tcp();  // what came may let queues go on
  return std::min({ports, tcp, tend_queues(), tend_links()});
}

Nanoseconds Engine::turn() {
  if (take_events(doorbell_.get()) != 0) relay_events();
  const Nanoseconds next = look_round();
  const bool is_rung = take_events(doorbell_.get()) != 0;
  if (is_rung) relay_events();
  return is_rung ? kAtOnce : std::min(next, next_look_.load(std::memory_order_relaxed));
}

void Engine::handle(uint64_t tag) {
  const int fd = static_cast<int>(tag & 0xffffffff);
  switch (static_cast<Watched>(tag >> 32)) {
    case Watched::listener:
      if (!neighbours_->on_listener()) rest_links();
      break;
    case Watched::link:
      if (!neighbours_->on_link(fd)) rest_links();
      if (!neighbours_->has_dropped()) break;
      // A peer took memory back. Whoever found it before holds the lock of its queue.
      for_each_qp([](Qp& qp) { SpinGuard under_way(qp.exec); });
      neighbours_->unmap_dropped();
      break;
    case Watched::pidfd: neighbours_->on_pidfd(fd); break;
    case Watched::timer: take_events(fd); break;
    case Watched::tcp: break;  // the next round looks
    case Watched::port:
      for (const SharedPort& port : ports_)
        if (port.listener.get() == fd && !hand_over(port)) rest_links();
      break;
    case Watched::doorbell:
      take_events(fd);
      relay_events();
      break;
  }
}

void Engine::watch_callers(uint32_t events) {
  change_watch(epoll_.get(), listener_.get(), Watched::listener, events);
  for (const SharedPort& port : ports_)
    if (port.listener.is_open())
      change_watch(epoll_.get(), port.listener.get(), Watched::port, events);
}

void Engine::rest_links() {
  constexpr Nanoseconds kRest = 100'000'000;
  constexpr Nanoseconds kTellAgain = 10'000'000'000;
  const Nanoseconds now = device_now();
  if (now >= lack_told_again_) {
    lack_told_again_ = now + kTellAgain;
    log(LogLevel::warn,
        "a process that calls or answers waits, for there is no descriptor or no memory for it, or "
        "no "
        "%zu MB of addresses: raise the limit of open files (ulimit -n) or of memory (ulimit -v)",
        sizeof(SharedSegment) / 1'000'000);
  }
  watch_callers(0);
  links_due_ = now + kRest;
}

// When to look at callers and links again; kNever while they are watched.
Nanoseconds Engine::tend_links() {
  if (links_due_ == kNever || device_now() < links_due_) return links_due_;
  watch_callers(EPOLLIN);
  neighbours_->resume_links();
  return links_due_ = kNever;
}

namespace {
// Ends a flush's wait if the peer has let go of the queue pair.
bool can_flush_now(Qp& qp) {
  SpinGuard guard(qp.receives_to().list);
  if (!may_flush(qp)) return false;
  qp.flush_waits.store(false, std::memory_order_release);  // with flush()
  end_shared(qp);
  return true;
}
}  // namespace

// Executes what is queued; the time of the next look, kNever if nothing is left.
Nanoseconds Engine::tend_queues() {
  Nanoseconds next = kNever;
  for_each_qp([&next](Qp& qp) {
    if (qp.sends_to().is_overrun.load(std::memory_order_acquire) ||
        qp.receives_to().is_overrun.load(std::memory_order_acquire)) {  // with on_overrun()
      SpinGuard guard(qp.receives_to().list);
      if (enter_error(qp)) raise_event(&qp, IBV_EVENT_QP_FATAL);
    }
    if (qp.flush_waits.load(std::memory_order_acquire)) {  // with flush()
      if (can_flush_now(qp))
        fire_local(qp.receives_to(), true);
      else
        next = std::min(next, device_now() + kTick);
    }
    if (!qp.has_work()) return;
    const Progress progress = try_execute(qp, qp.engine.places_late() ? 0 : kExecuteBudget);
    if (!qp.has_work()) return;
    const bool is_urgent = progress == Progress::wants_more && !qp.engine.places_late();
    next = std::min(next, is_urgent ? kAtOnce : next_look(qp, progress));
  });
  return next;
}

// Peers that do not know a channel's descriptor yet ring the doorbell instead; so do peers that
// found us at fault, or that ask for our hand.
void Engine::relay_events() {
  for_each_cq([](Cq& cq) {
    if (cq.channel == nullptr || !has_event(cq)) return;
    const uint32_t armed = cq.shared.armed.load(std::memory_order_relaxed);
    if (std::exchange(cq.relayed, armed) != armed) signal_event(cq.channel->fd);
  });
  for_each_qp([](Qp& qp) {
    SpinGuard guard(qp.receives_to().list);
    answer_questions(qp);
    supply(qp);
    take_fault(qp);
    end_shared(qp);
  });
}

// What a peer left before its end, and did not live to tell.
void Engine::tell_losses() {
  relay_events();
  for_each_qp([](Qp& qp) {
    SpinGuard guard(qp.receives_to().list);
    wake_for_lost(qp);
  });
}

void Engine::set_timer(Nanoseconds at) {
  at = std::max(at, kAtOnce);  // 0 would disarm it
  next_look_.store(at, std::memory_order_relaxed);
  if (!timer_.is_open()) return;  // turn() tells it
  itimerspec spec{};
  spec.it_value = {at / 1'000'000'000, at % 1'000'000'000};
  ::timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &spec, nullptr);
}

void Engine::abandon_in_child() {
  neighbours_->close_all();
  if (TcpNetwork* network = tcp(); network != nullptr) network->close_all();
  ::close(listener_.get());
  for (SharedPort& port : ports_) port.listener.reset();  // else its name would outlive the parent
}

}  // namespace noria::soft
