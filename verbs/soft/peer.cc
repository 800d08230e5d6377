#include "verbs/soft/peer.hpp"

#include <poll.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>

#include "base/log.hpp"

namespace noria::soft {

void signal_event(int fd) {
  const uint64_t one = 1;
  // A full counter means that the reader has been told already.
  if (::write(fd, &one, sizeof one) < 0) return;
}

uint64_t take_events(int fd) {
  uint64_t count = 0;
  return ::read(fd, &count, sizeof count) == sizeof count ? count : 0;
}

std::unique_ptr<Peer> Peer::map(const Identity& identity, uint32_t own_slot, bool may_attach,
                                Descriptors descriptors) {
  void* memory = map_shared(descriptors.segment.get(), sizeof(SharedSegment), false);
  if (memory == nullptr) return nullptr;
  std::unique_ptr<Peer> peer(new Peer);
  peer->identity_ = identity;
  peer->shared_ = static_cast<const SharedSegment*>(memory);
  peer->mapping_ = Mapping<const SharedSegment>(peer->shared_, Unmapper{sizeof(SharedSegment)});
  const SharedHeader& header = peer->shared_->header;
  if (header.magic != kSegmentMagic || header.version != kLayoutVersion ||
      header.segment_bytes != sizeof(SharedSegment) || header.slot != identity.slot ||
      std::memcmp(header.cookie, identity.cookie, sizeof identity.cookie) != 0)
    return nullptr;
  for (uint32_t i = 0; i < kMaxDevices; ++i)
    peer->moved_before_[i] = header.traffic[own_slot][i].now();
  peer->doorbell_ = std::move(descriptors.doorbell);
  peer->doorbell_fd_ = peer->doorbell_.get();
  peer->pidfd_ = std::move(descriptors.pidfd);
  peer->can_attach_ = may_attach && peer->prove_attach();
  return peer;
}

std::unique_ptr<Peer> Peer::loopback(const Identity& identity, const SharedSegment& own,
                                     const std::vector<SharedPort>& ports, int doorbell) {
  std::unique_ptr<Peer> peer(new Peer);
  peer->identity_ = identity;
  peer->shared_ = &own;
  for (size_t i = 0; i < ports.size(); ++i)
    peer->ports_[i].store(ports[i].schedule.get(), std::memory_order_relaxed);  // nobody looks yet
  peer->doorbell_fd_ = doorbell;
  peer->is_self_ = true;
  peer->can_attach_ = true;
  return peer;
}

std::unique_ptr<Peer> Peer::over_tcp(const Identity& identity, const SharedSegment& mirror,
                                     TcpConnection* connection, int doorbell) {
  std::unique_ptr<Peer> peer(new Peer);
  peer->identity_ = identity;
  peer->shared_ = &mirror;
  peer->connection_ = connection;
  peer->doorbell_fd_ = doorbell;
  peer->own_ports_ = std::make_unique<PortSchedule[]>(kMaxDevices);
  for (size_t i = 0; i < kMaxDevices; ++i)
    peer->ports_[i].store(&peer->own_ports_[i], std::memory_order_relaxed);  // nobody looks yet
  return peer;
}

Peer::~Peer() {
  for (auto& entry : mapped_) delete entry.load(std::memory_order_relaxed);  // no reader is left
  for (auto& entry : channels_) delete entry.load(std::memory_order_relaxed);
}

// The peer told the address of its header in the header itself.
bool Peer::prove_attach() const {
  uint64_t cookie[2] = {};
  const iovec local{cookie, sizeof cookie};
  const iovec remote{reinterpret_cast<void*>(shared_->header.cookie_address), sizeof cookie};
  return ::process_vm_readv(identity_.pid, &local, 1, &remote, 1, 0) == sizeof cookie &&
         std::memcmp(cookie, identity_.cookie, sizeof cookie) == 0;
}

bool Peer::ends_within(Nanoseconds limit) const {
  pollfd ended{pidfd_.get(), POLLIN, 0};
  return pidfd_.is_open() && ::poll(&ended, 1, static_cast<int>(limit / 1_ms)) == 1;
}

bool Peer::confirm_alive() const {
  if (is_self_) return true;
  timespec time;
  ::clock_gettime(CLOCK_MONOTONIC_COARSE, &time);
  const Nanoseconds tick = static_cast<Nanoseconds>(time.tv_sec) * 1'000'000'000 + time.tv_nsec;
  // relaxed: a check more or less harms nobody.
  if (tick == confirmed_.load(std::memory_order_relaxed)) return is_alive();
  if (has_ended()) mark_dead();
  confirmed_.store(tick, std::memory_order_relaxed);
  return is_alive();
}

void Peer::note_stalled(uint32_t index) const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  stalled_index_.store(index, kRelaxed);
  stalled_mark_.store(shared_->qps[index].mark.load(kRelaxed), kRelaxed);
}

bool Peer::is_stalled() const {
  constexpr auto kRelaxed = std::memory_order_relaxed;
  const uint64_t mark = stalled_mark_.load(kRelaxed);
  if (mark == 0) return false;
  const bool still = shared_->qps[stalled_index_.load(kRelaxed)].mark.load(kRelaxed) == mark;
  if (!still) stalled_mark_.store(0, kRelaxed);
  return still;
}

void Peer::add_port(uint32_t device, const Fd& fd) {
  if (device >= kMaxDevices || port(device) != nullptr) return;
  auto* schedule = static_cast<PortSchedule*>(map_shared(fd.get(), sizeof(PortSchedule), true));
  if (schedule == nullptr) {
    log(LogLevel::warn, "peer in slot %u: cannot map the schedule of its port %u", identity_.slot,
        device);
    return;
  }
  port_mappings_.emplace_back(schedule, Unmapper{sizeof(PortSchedule)});
  ports_[device].store(schedule, std::memory_order_release);  // with port()
}

void Peer::add_mapping(uint32_t id, size_t bytes, const Fd& fd) {
  if (mapped(id, 0, 0) != nullptr) return;
  void* base = map_shared(fd.get(), bytes, true);
  if (base == nullptr) {
    log(LogLevel::warn, "peer in slot %u: cannot map its memory %u of %zu bytes; attach serves",
        identity_.slot, id, bytes);
    return;
  }
  auto* entry =
      new Mapped{id, bytes, Mapping<uint8_t>(static_cast<uint8_t*>(base), Unmapper{bytes})};
  // release: publishes the entry; pairs with mapped().
  Mapped* old = mapped_[id % kMaxAllocations].exchange(entry, std::memory_order_acq_rel);
  if (old != nullptr) dropped_.emplace_back(old);
}

void Peer::drop_mapping(uint32_t id) {
  if (mapped(id, 0, 0) == nullptr) return;
  dropped_.emplace_back(mapped_[id % kMaxAllocations].exchange(nullptr, std::memory_order_acq_rel));
}

void Peer::add_channel(uint32_t id, Fd fd) {
  if (channel_fd(id) >= 0) return;
  // release: publishes the entry; pairs with channel_fd().
  Channel* old = channels_[id % kMaxChannels].exchange(new Channel{id, std::move(fd)},
                                                       std::memory_order_acq_rel);
  if (old != nullptr) old_channels_.emplace_back(old);
}

void Peer::drop_channel(uint32_t id) {
  if (channel_fd(id) < 0) return;
  old_channels_.emplace_back(
      channels_[id % kMaxChannels].exchange(nullptr, std::memory_order_acq_rel));
}

void Peer::wake() const { signal_event(doorbell_fd_); }

}  // namespace noria::soft
