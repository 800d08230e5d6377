#include "verbs/transport/domain.hpp"

#include <algorithm>
#include <cerrno>

#include "base/log.hpp"
#include "verbs/transport/adaptive.hpp"
#include "verbs/transport/domain_state.hpp"
#include "verbs/transport/link.hpp"
#include "verbs/transport/recv.hpp"
#include "verbs/transport/region_state.hpp"
#include "verbs/transport/send.hpp"

namespace noria::transport {
namespace {

// Entries of each completion queue: about a hundred queue pairs at full window, 2 MiB on mlx5.
constexpr uint32_t kCompletions = 32768;
// And of one that serves a single connection, for each queue pair of NORIA_QPS_PER_CONNECTION: a
// receiver can have 352 there, a sender that routes adaptively 513, and the parts of a long message
// on top. Twice that, for a peer with twice our rails brings twice the queue pairs; 32 are of its
// flushes. 64 KiB on mlx5, which takes the next power of two, or 128 KiB.
uint32_t completions_of_queue_pair(bool is_adaptive, uint64_t request_bytes) {
  const uint32_t of_sender = (is_adaptive ? 2 : 1) * kWindow + 1 + parts_of_longest(request_bytes);
  return 2 * std::max(352u, of_sender) + kMaxFlushes;
}

// What all of them take in one work request: whole lines, as none is split between two.
uint64_t request_bytes_of(std::span<const std::shared_ptr<Port>> ports) {
  uint64_t least = kMaxMessageBytes;
  for (const std::shared_ptr<Port>& port : ports)
    if (const uint64_t most = port->device().attr.max_msg_sz & ~(kLineBytes - 1); most != 0)
      least = std::min(least, most);
  return least;
}

Result<Rail> make_rail(std::shared_ptr<Port> port, uint32_t completions, verbs::Waiting waiting) {
  verbs::OpenPort device = port->device();
  const int entries = std::min(static_cast<int>(completions), device.limits.max_cqe);
  NORIA_TRY_ASSIGN(auto cq,
                   verbs::CompletionQueue::make(port->api(), port->context(), entries, waiting));
  port->events().forget(cq.get());
  return Rail{.shared = std::move(port), .device = std::move(device), .cq = std::move(cq)};
}

verbs::Ordering payload_ordering(const Params& params) {
  return params.relaxed_ordering == "off" ? verbs::Ordering::strict : verbs::Ordering::relaxed;
}

}  // namespace

DomainState::DomainState(std::shared_ptr<RailSet> rails, const Params& params)
    : rails_(std::move(rails)),
      first_rail_(rails_->rails.data()),
      rails_end_(first_rail_ + rails_->rails.size()),
      params_(params) {}

Result<std::unique_ptr<DomainState>> DomainState::create(
    std::span<const std::shared_ptr<Port>> ports, const Params& params, uint32_t completions,
    verbs::Waiting waiting) {
  auto set = std::make_shared<RailSet>();
  set->completions = completions;
  set->request_bytes = request_bytes_of(ports);
  for (const std::shared_ptr<Port>& port : ports) {
    NORIA_TRY_ASSIGN(Rail rail, make_rail(port, completions, waiting));
    const verbs::OpenPort& device = rail.port();
    set->completions = std::min(set->completions, static_cast<uint32_t>(device.limits.max_cqe));
    set->rails.push_back(std::move(rail));
  }
  return std::unique_ptr<DomainState>(new DomainState(std::move(set), params));
}

DomainState::~DomainState() {
  for (const auto& entry : table_)
    NORIA_CHECK(entry.load(std::memory_order_relaxed) == nullptr,  // relaxed: nobody else is left
                "a domain must outlive its connections");
  for (const Rail& rail : rails_->rails) rail.shared->events().forget(rail.cq.get());
}

Result<Seat> DomainState::take_seat(uint32_t completions) {
  MutexLock lock(mutex_);
  if (completions > rails_->completions - completions_taken_) {
    log(LogLevel::error,
        "%s: the completion queue of %u entries has no room for another "
        "connection; use fewer connections or queue pairs",
        rails_->rails.front().port().info.device.c_str(), rails_->completions);
    return Status(Code::no_memory);
  }
  uint16_t index = 0;
  if (!free_seats_.empty()) {
    index = free_seats_.back();
    free_seats_.pop_back();
  } else if (next_seat_ < kMaxLinks) {
    index = static_cast<uint16_t>(next_seat_++);
  } else {
    log(LogLevel::error, "a domain has at most %u connections", kMaxLinks);
    return Status(Code::no_memory);
  }
  completions_taken_ += completions;
  return Seat{.index = index, .generation = ++generations_[index], .completions = completions};
}

uint32_t DomainState::room(uint32_t completions, uint32_t others) {
  MutexLock lock(mutex_);
  const uint32_t free = rails_->completions - completions_taken_;
  return (free - std::min(free, others)) / completions;
}

void DomainState::give_seat(const Seat& seat) {
  MutexLock lock(mutex_);
  free_seats_.push_back(seat.index);
  completions_taken_ -= seat.completions;
}

void DomainState::publish(const Seat& seat, Link& link) {
  table_[seat.index].store(&link, std::memory_order_release);   // pairs with acquire in dispatch()
  uint32_t used = seats_used_.load(std::memory_order_relaxed);  // relaxed: retried below
  while (used <= seat.index &&
         !seats_used_.compare_exchange_weak(used, seat.index + 1u, std::memory_order_release,
                                            std::memory_order_relaxed)) {
  }
}

void DomainState::leave(const Seat& seat) {
  // relaxed: the owner's own thread is the only reader of the entry from here on.
  table_[seat.index].store(nullptr, std::memory_order_relaxed);
}

inline unsigned DomainState::poll() {
  Rail* rail = first_rail_;
  do {
    if (const int got = rail->cq.poll(wcs_.data(), kPollBatch); got != 0) return handle(rail, got);
  } while (++rail != rails_end_);
  if (--empty_polls_left_ == 0) [[unlikely]]
    on_empty_polls();
  return 0;
}

unsigned DomainState::handle(Rail* rail, int got) {
  unsigned handled = 0;
  while (true) {
    if (got > 0) {
      dispatch(wcs_.data(), wcs_.data() + got);
      handled += static_cast<unsigned>(got);
    } else if (got < 0) [[unlikely]] {
      on_queue_failed(*rail);
    }
    if (++rail == rails_end_) return handled;
    got = rail->cq.poll(wcs_.data(), kPollBatch);
  }
}

inline void DomainState::dispatch(const ibv_wc* wc, const ibv_wc* end) {
  do {
    const WrId id(wc->wr_id);
    Link* const link =
        table_[id.seat() % kMaxLinks].load(std::memory_order_acquire);  // pairs with publish()
    if (link == nullptr || !link->is_seat_of(id)) [[unlikely]]
      ++wc;  // of a connection that is gone
    else if (SendState* const sender = link->sender(); sender != nullptr)
      wc = sender->on_completions(wc, end);
    else
      wc = link->receiver()->on_completions(wc, end);
  } while (wc != end);
}

void DomainState::on_empty_polls() {
  empty_polls_left_ = kEmptyPollsPerCheck;
  check_devices();  // first: what the peer says of it is a consequence
  check_control_sockets();
}

void DomainState::check_devices() {
  for (const Rail& rail : rails_->rails) rail.shared->take_events();
  end_lost();
}

bool DomainState::end_lost() {
  bool is_any_lost = false, has_failed = false;
  for (const Rail& rail : rails_->rails) {
    const PortEvents& events = rail.shared->events();
    is_any_lost |= events.is_device_lost() || events.is_any_broken();
    if (events.is_any_broken() && events.is_broken(rail.cq.get()))
      has_failed |= on_queue_failed(rail);
  }
  if (!is_any_lost) return false;
  const uint32_t used = seats_used_.load(std::memory_order_acquire);  // pairs with publish()
  for (uint32_t i = 0; i < used; ++i)
    if (Link* link = table_[i].load(std::memory_order_acquire); link != nullptr)
      has_failed |= link->fail_if_device_gave_up();
  return has_failed;
}

bool DomainState::on_queue_failed(const Rail& rail) {
  bool has_failed = false;
  const uint32_t used = seats_used_.load(std::memory_order_acquire);  // pairs with publish()
  for (uint32_t i = 0; i < used; ++i)
    if (Link* link = table_[i].load(std::memory_order_acquire); link != nullptr) {
      has_failed |= link->status().is_ok();
      link->fail(Status(Code::device_lost), "the completion queue of " + rail.port().info.device +
                                                " failed: see the kernel log");
    }
  return has_failed;
}

void DomainState::check_control_sockets() {
  const uint32_t used = seats_used_.load(std::memory_order_acquire);  // pairs with publish()
  bool is_any_gone = false;
  for (uint32_t i = 0; i < used; ++i)
    if (Link* link = table_[i].load(std::memory_order_acquire); link != nullptr)
      is_any_gone |= link->is_peer_gone();
  if (!is_any_gone) return;

  // What a peer sent before it went is in the queues by now, and still counts.
  for (uint32_t i = 0; i < rails_->completions && poll() != 0; ++i) {
  }
  for (uint32_t i = 0; i < used; ++i)
    if (Link* link = table_[i].load(std::memory_order_acquire);
        link != nullptr && link->is_peer_gone())
      link->fail_by_control();
}

void DomainState::collect_poll_set(int wake_fd) {
  poll_set_.clear();
  for (const Rail& rail : rails_->rails)
    poll_set_.push_back({.fd = rail.cq.fd(), .events = POLLIN, .revents = 0});
  for (const Rail& rail : rails_->rails)
    poll_set_.push_back({.fd = rail.shared->events_fd(), .events = POLLIN, .revents = 0});
  poll_set_.push_back({.fd = wake_fd, .events = POLLIN, .revents = 0});  // -1 is passed over
  const uint32_t used = seats_used_.load(std::memory_order_acquire);     // pairs with publish()
  for (uint32_t i = 0; i < used; ++i)
    if (const Link* link = table_[i].load(std::memory_order_acquire); link != nullptr)
      poll_set_.push_back({.fd = link->control_fd(), .events = POLLIN, .revents = 0});
}

Status DomainState::arm_and_wait(Nanoseconds deadline, int wake_fd) {
  for (Rail& rail : rails_->rails) NORIA_TRY(rail.cq.arm());
  // What came before the arming gives no event.
  if (poll() != 0) return {};
  // What was read as another connection failed makes no descriptor readable.
  if (end_lost()) return {};

  counters_.add(Counter::sleeps);
  collect_poll_set(wake_fd);
  const Nanoseconds left =
      deadline == kNever ? kNever : std::max<Nanoseconds>(0, deadline - now_ns());
  const timespec timeout{.tv_sec = left / 1'000'000'000, .tv_nsec = left % 1'000'000'000};
  const int ready =
      ppoll(poll_set_.data(), poll_set_.size(), deadline == kNever ? nullptr : &timeout, nullptr);
  if (ready < 0) return errno == EINTR ? Status() : Status::from_errno(Code::internal, errno);
  if (ready == 0) return {};
  const size_t rails = rails_->rails.size();
  for (size_t i = 0; i < rails; ++i)
    if (poll_set_[i].revents != 0) rails_->rails[i].cq.drain_events();
  const auto has_news = [](const pollfd& entry) { return entry.revents != 0; };
  const auto events = poll_set_.begin() + static_cast<ptrdiff_t>(rails);
  const auto wake = events + static_cast<ptrdiff_t>(rails);
  if (std::any_of(events, wake, has_news)) check_devices();
  if (std::any_of(wake + 1, poll_set_.end(), has_news)) check_control_sockets();
  return {};
}

Domain::Domain(std::unique_ptr<DomainState> state) : state_(std::move(state)) {}
Domain::~Domain() = default;

Result<std::unique_ptr<Domain>> Domain::create(
    const std::shared_ptr<const verbs::Provider>& provider, const Params& params, unsigned rails) {
  std::vector<std::shared_ptr<Port>> ports;
  for (const verbs::PortInfo& info : provider->ports()) {
    if (!info.is_active || ports.size() == std::clamp(rails, 1u, kMaxRails)) continue;
    if (!ports.empty() && ports.front()->device().info.is_ethernet != info.is_ethernet) continue;
    NORIA_TRY_ASSIGN(std::shared_ptr<Port> port, Port::open(provider, info));
    ports.push_back(std::move(port));
  }
  if (ports.empty()) {
    log(LogLevel::error, "%s", provider->no_active_port().c_str());
    return Status(Code::device_lost);
  }
  NORIA_TRY_ASSIGN(auto state,
                   DomainState::create(ports, params, kCompletions, verbs::Waiting::by_sleeping));
  return std::unique_ptr<Domain>(new Domain(std::move(state)));
}

Result<std::unique_ptr<Domain>> Domain::create_for_one(std::span<const std::shared_ptr<Port>> ports,
                                                       const Params& params) {
  if (ports.empty() || ports.size() > kMaxRails) return Status(Code::bad_argument);
  const bool is_infiniband = !ports.front()->device().info.is_ethernet;
  const bool is_adaptive = adaptive_from(params, is_infiniband) != UINT64_MAX;
  const uint32_t completions = static_cast<uint32_t>(params.qps_per_connection) *
                               completions_of_queue_pair(is_adaptive, request_bytes_of(ports));
  NORIA_TRY_ASSIGN(auto state,
                   DomainState::create(ports, params, completions, verbs::Waiting::by_polling));
  return std::unique_ptr<Domain>(new Domain(std::move(state)));
}

Result<Region> Domain::register_region(void* base, uint64_t bytes) {
  NORIA_TRY_ASSIGN(auto state, RegionState::over(*state_->rails(), base, bytes,
                                                 payload_ordering(state_->params())));
  return Region(std::move(state));
}

Result<Region> Domain::register_region(const DeviceMemory& memory) {
  NORIA_TRY_ASSIGN(auto state,
                   RegionState::over(*state_->rails(), memory, payload_ordering(state_->params())));
  return Region(std::move(state));
}

Result<Region> Domain::allocate(uint64_t bytes, Watched watched) {
  const verbs::Ordering ordering =
      watched == Watched::yes ? verbs::Ordering::strict : payload_ordering(state_->params());
  NORIA_TRY_ASSIGN(auto state, RegionState::allocate(*state_->rails(), bytes, ordering));
  return Region(std::move(state));
}

unsigned Domain::poll() { return state_->poll(); }
Status Domain::arm_and_wait(Nanoseconds deadline, int wake_fd) {
  return state_->arm_and_wait(deadline, wake_fd);
}

bool Domain::reads_are_cheap() const {
  const RailSet& set = *state_->rails();
  const auto features = set.api().symbols().noria_features;
  return features != nullptr &&
         (features(set.rails.front().shared->context()) & kReadsAreCheap) != 0;
}

uint64_t Domain::ports() const { return state_->rails()->ports(); }

unsigned Domain::rails() const { return static_cast<unsigned>(state_->rails()->rails.size()); }

std::string Domain::describe() const {
  const RailSet& set = *state_->rails();
  std::string text;
  for (const Rail& rail : set.rails) {
    if (!text.empty()) text += ", ";
    text += rail.port().info.name();
    char words[256] = "";
    if (const auto describe = set.api().symbols().noria_describe;
        describe != nullptr && describe(rail.shared->context(), words, sizeof words) == 0)
      text += std::string(" (") + words + ")";
  }
  return text;
}

uint64_t Domain::counted(Counter counter) const { return state_->counters().value(counter); }

VerbsStats Domain::stats() const {
  const RailSet& set = *state_->rails();
  VerbsStats sum;
  const auto ask = set.api().symbols().noria_stats;
  if (ask == nullptr) return sum;
  for (const Rail& rail : set.rails) {
    VerbsStats one;
    if (ask(rail.shared->context(), &one) != 0) continue;
    sum.sent_bytes += one.sent_bytes;
    sum.received_bytes += one.received_bytes;
    sum.sent_messages += one.sent_messages;
    sum.received_messages += one.received_messages;
  }
  return sum;
}

}  // namespace noria::transport
