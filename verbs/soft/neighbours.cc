#include "verbs/soft/neighbours.hpp"

#include <sys/epoll.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/log.hpp"
#include "verbs/soft/accept_failure.hpp"
#include "verbs/soft/address.hpp"

namespace noria::soft {

namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;  // under the lock, or counters and hints

// Whether a peer's segment could be mapped, as its greeting asks. One that is read and not mapped
// is a connection lost, which the peer asks for anew at once, and so on.
bool has_room_for_segment() {
  void* room = ::mmap(nullptr, sizeof(SharedSegment), PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return room != MAP_FAILED && ::munmap(room, sizeof(SharedSegment)) == 0;
}

}  // namespace

Neighbours::Neighbours(const Self& self, const SharedSegment& own,
                       const std::vector<SharedPort>& own_ports, MemoryTable& memory)
    : self_(self), own_(own), ports_(own_ports), memory_(memory) {
  MutexLock lock(mutex_);
  make_usable(add_known(Peer::loopback(self.identity, own, own_ports, self.doorbell)));
}

Peer* Neighbours::add_known(std::unique_ptr<Peer> peer) {
  known_.push_back(Known{std::move(peer), 0});
  Peer* added = known_.back().peer.get();
  latest_[added->identity().slot].store(added, kRelaxed);
  return added;
}

Peer* Neighbours::find_known(uint32_t slot, const uint64_t (&cookie)[2]) const {
  for (const Known& known : known_) {
    const Peer::Identity& identity = known.peer->identity();
    if (identity.slot == slot && std::memcmp(identity.cookie, cookie, sizeof cookie) == 0)
      return known.peer.get();
  }
  return nullptr;
}

// From now on we may act on it: it knows us, so that its fence sees our marks.
void Neighbours::make_usable(Peer* peer) {
  if (peer->is_alive()) by_slot_[peer->identity().slot].store(peer, kRelaxed);
}

Peer* Neighbours::count_use(Peer* peer) {
  for (Known& known : known_)
    if (known.peer.get() == peer) ++known.users;
  return peer;
}

Peer* Neighbours::use(uint32_t slot) {
  MutexLock lock(mutex_);
  return count_use(by_slot_[slot].load(kRelaxed));
}

void Neighbours::done_with(Peer* peer) {
  MutexLock lock(mutex_);
  for (Known& known : known_)
    if (known.peer.get() == peer) --known.users;
}

// Lets dead peers go that nobody uses, but for the last few: a message of theirs may still be
// unread by a queue pair that has not looked yet.
void Neighbours::bury() {
  constexpr size_t kMourned = 16;
  const auto is_dead = [](const Known& k) { return !k.peer->is_alive() && k.users == 0; };
  auto dead = static_cast<size_t>(std::count_if(known_.begin(), known_.end(), is_dead));
  for (size_t i = 0; i < known_.size() && dead > kMourned;) {
    if (!is_dead(known_[i])) {
      ++i;
      continue;
    }
    Peer* gone = known_[i].peer.get();
    lose(gone);  // an initiator may have seen its end before we did
    for (uint32_t device = 0; device < kMaxDevices; ++device)
      buried_[device] += gone->moved(self_.identity.slot, device);
    std::atomic<Peer*>& latest = latest_[gone->identity().slot];
    if (latest.load(kRelaxed) == gone) latest.store(nullptr, kRelaxed);
    for (Contact& contact : contacts_)
      if (contact.peer == gone) contact.peer = nullptr;
    known_.erase(known_.begin() + static_cast<std::ptrdiff_t>(i));
    --dead;
  }
}

Moved Neighbours::inbound(uint32_t device) {
  MutexLock lock(mutex_);
  Moved sum = buried_[device];
  for (const Known& known : known_) sum += known.peer->moved(self_.identity.slot, device);
  return sum;
}

Neighbours::Reach Neighbours::want(uint32_t slot) {
  MutexLock lock(mutex_);
  if (slot == 0 || slot >= kSlots) return Reach::absent;
  if (by_slot_[slot].load(kRelaxed) != nullptr) return Reach::known;
  if (self_.listener < 0) return Reach::absent;  // on a host of our own
  for (const Contact& contact : contacts_)
    if (contact.wanted_slot == slot) return Reach::linking;
  Link link = Link::connect(slot);
  if (!link.is_open()) return link.is_busy() ? Reach::linking : Reach::absent;
  add_contact(std::move(link), slot);
  return Reach::linking;
}

void Neighbours::add_contact(Link link, uint32_t wanted_slot) {
  // Who connects speaks first; who accepts maps it and answers; who connected maps that and says
  // that it is ready. Each side acts on the other only when it knows that the other has mapped it.
  if (wanted_slot != 0 && !say_hello(link)) return;
  watch(link.fd(), EPOLLIN);
  contacts_.push_back(Contact{std::move(link), nullptr, wanted_slot});
}

void Neighbours::watch(int fd, uint32_t events) {
  epoll_event event{};
  event.events = events;
  event.data.u64 = watch_tag(Watched::link, fd);
  if (::epoll_ctl(self_.epoll, EPOLL_CTL_ADD, fd, &event) != 0)
    ::epoll_ctl(self_.epoll, EPOLL_CTL_MOD, fd, &event);
}

bool Neighbours::say_hello(Link& link) {
  LinkMessage hello;
  hello.kind = LinkKind::hello;
  hello.id = self_.identity.slot;
  hello.bytes = sizeof(SharedSegment);
  std::copy_n(self_.identity.cookie, 2, hello.cookie);
  const int fds[kLinkFds] = {self_.segment, self_.doorbell, self_.pidfd};
  return link.send(hello, fds, self_.pidfd >= 0 ? kLinkFds : kLinkFds - 1);
}

bool Neighbours::on_listener() {
  MutexLock lock(mutex_);
  Link link = Link::accept(self_.listener);
  if (!link.is_open()) return !leaves_caller_waiting(errno);
  add_contact(std::move(link), 0);
  return true;
}

bool Neighbours::on_link(int fd) {
  MutexLock lock(mutex_);
  const auto found = std::find_if(contacts_.begin(), contacts_.end(),
                                  [fd](const Contact& c) { return c.link.fd() == fd; });
  if (found == contacts_.end()) return true;
  const auto index = static_cast<size_t>(found - contacts_.begin());
  Contact& contact = contacts_[index];
  bool is_good = contact.link.flush();
  if (!contact.link.has_unsent()) watch(fd, EPOLLIN);
  while (is_good) {
    Received received;
    const bool has_room = contact.peer != nullptr || has_room_for_segment();
    const Link::Event event = has_room ? contact.link.receive(&received) : Link::Event::no_room;
    if (event == Link::Event::nothing) return true;
    if (event == Link::Event::no_room) {
      ::epoll_ctl(self_.epoll, EPOLL_CTL_DEL, fd, nullptr);
      contact.is_resting = true;
      return false;
    }
    is_good = event == Link::Event::message && take(contact, received);
  }
  drop(index);
  return true;
}

void Neighbours::resume_links() {
  MutexLock lock(mutex_);
  for (Contact& contact : contacts_)
    if (std::exchange(contact.is_resting, false))
      watch(contact.link.fd(), contact.link.has_unsent() ? EPOLLIN | EPOLLOUT : EPOLLIN);
}

bool Neighbours::take(Contact& contact, Received& received) {
  const LinkMessage& message = received.message;
  if (message.kind == LinkKind::hello) return contact.peer == nullptr && admit(contact, received);
  if (contact.peer == nullptr) return false;
  switch (message.kind) {
    case LinkKind::channel:
      if (received.fd_count == 1) contact.peer->add_channel(message.id, std::move(received.fds[0]));
      return true;
    case LinkKind::memory:
      if (received.fd_count == 1)
        contact.peer->add_mapping(message.id, message.bytes, received.fds[0]);
      return true;
    case LinkKind::port:
      if (received.fd_count == 1) contact.peer->add_port(message.id, received.fds[0]);
      return true;
    case LinkKind::ready: make_usable(contact.peer); return true;
    case LinkKind::memory_gone: contact.peer->drop_mapping(message.id); return true;
    case LinkKind::channel_gone: contact.peer->drop_channel(message.id); return true;
    case LinkKind::hello: break;
  }
  return false;
}

bool Neighbours::admit(Contact& contact, Received& received) {
  const LinkMessage& hello = received.message;
  if (hello.id == 0 || hello.id >= kSlots || hello.id == self_.identity.slot ||
      received.fd_count < kLinkFds - 1 || hello.bytes != sizeof(SharedSegment))
    return false;
  Peer* known = find_known(hello.id, hello.cookie);
  const bool is_known = known != nullptr;
  if (!is_known) {
    Peer::Identity identity{hello.id, contact.link.pid(), {hello.cookie[0], hello.cookie[1]}};
    auto peer = Peer::map(
        identity, self_.identity.slot, self_.may_attach,
        {std::move(received.fds[0]), std::move(received.fds[1]), std::move(received.fds[2])});
    if (peer == nullptr) {
      log(LogLevel::warn, "link: process %d shows a segment that is not its own: refused",
          contact.link.pid());
      return false;
    }
    // The slot has a new owner: the old one is dead.
    if (Peer* old = latest_[hello.id].load(kRelaxed); old != nullptr) lose(old);
    bury();
    look_for_collisions(*peer);
    known = peer.get();
    if (known->pidfd() >= 0) {
      epoll_event event{};
      event.events = EPOLLIN;
      event.data.u64 = watch_tag(Watched::pidfd, known->pidfd());
      ::epoll_ctl(self_.epoll, EPOLL_CTL_ADD, known->pidfd(), &event);
    }
    add_known(std::move(peer));
  }
  contact.peer = known;
  if (contact.wanted_slot == 0) {
    if (!say_hello(contact.link)) return false;
  } else {
    if (!contact.link.send(LinkMessage{.kind = LinkKind::ready}, nullptr, 0)) return false;
    make_usable(known);
  }
  if (is_known) return true;

  for (uint32_t i = 0; i < ports_.size(); ++i) {
    const int fd = ports_[i].memory.get();
    contact.link.send(LinkMessage{.kind = LinkKind::port, .id = i}, &fd, 1);
  }
  for (const Channel& channel : channels_)
    contact.link.send(LinkMessage{.kind = LinkKind::channel, .id = channel.id}, &channel.fd, 1);
  memory_.for_each_allocation([&contact](uint32_t id, size_t bytes, int fd) {
    contact.link.send(LinkMessage{.kind = LinkKind::memory, .id = id, .bytes = bytes}, &fd, 1);
  });
  if (contact.link.has_unsent()) watch(contact.link.fd(), EPOLLIN | EPOLLOUT);
  return true;
}

void Neighbours::look_for_collisions(Peer& peer) const {
  for (uint32_t i = 0; i < kMaxDevices; ++i) {
    for (const SharedAddress& ours : own_.header.addresses) {
      const SharedAddress& theirs = peer.shared().header.addresses[i];
      if (!collides(ours, theirs)) continue;
      log(LogLevel::error, "process %d cannot be reached at one device: %s", peer.identity().pid,
          collision_text(ours, theirs).c_str());
      peer.set_ambiguous(i);
    }
  }
}

void Neighbours::lose(Peer* peer) {
  peer->mark_dead();
  has_lost_ = true;
  std::atomic<Peer*>& entry = by_slot_[peer->identity().slot];
  if (entry.load(kRelaxed) == peer) entry.store(nullptr, kRelaxed);
  if (peer->pidfd() >= 0) ::epoll_ctl(self_.epoll, EPOLL_CTL_DEL, peer->pidfd(), nullptr);
}

void Neighbours::drop(size_t index) {
  Contact& contact = contacts_[index];
  if (contact.peer != nullptr) lose(contact.peer);
  ::epoll_ctl(self_.epoll, EPOLL_CTL_DEL, contact.link.fd(), nullptr);
  std::swap(contact, contacts_.back());
  contacts_.pop_back();
}

void Neighbours::on_pidfd(int fd) {
  MutexLock lock(mutex_);
  for (const Known& known : known_)
    if (known.peer->pidfd() == fd && known.peer->has_ended()) lose(known.peer.get());
}

bool Neighbours::take_loss() {
  MutexLock lock(mutex_);
  return std::exchange(has_lost_, false);
}

bool Neighbours::has_dropped() {
  MutexLock lock(mutex_);
  return std::any_of(known_.begin(), known_.end(),
                     [](const Known& known) { return known.peer->has_dropped(); });
}

void Neighbours::unmap_dropped() {
  MutexLock lock(mutex_);
  for (const Known& known : known_) known.peer->unmap_dropped();
}

void Neighbours::announce_channel(uint32_t id, int fd) {
  {
    MutexLock lock(mutex_);
    channels_.push_back(Channel{id, fd});  // before telling: a peer admitted now hears it twice
  }
  announce(LinkMessage{.kind = LinkKind::channel, .id = id}, fd);
}

void Neighbours::withdraw_channel(uint32_t id) {
  {
    MutexLock lock(mutex_);
    std::erase_if(channels_, [id](const Channel& channel) { return channel.id == id; });
  }
  announce(LinkMessage{.kind = LinkKind::channel_gone, .id = id}, -1);
}

void Neighbours::announce(const LinkMessage& message, int fd) {
  MutexLock lock(mutex_);
  std::vector<const Peer*> told;
  for (Contact& contact : contacts_) {
    if (contact.peer == nullptr || std::find(told.begin(), told.end(), contact.peer) != told.end())
      continue;
    told.push_back(contact.peer);
    contact.link.send(message, &fd, fd >= 0 ? 1 : 0);
    if (contact.link.has_unsent()) watch(contact.link.fd(), EPOLLIN | EPOLLOUT);
  }
}

void Neighbours::close_all() {
  for (Contact& contact : contacts_) ::close(contact.link.fd());
}

}  // namespace noria::soft
