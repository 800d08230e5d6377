#include "verbs/soft/copy_path.hpp"

#include <errno.h>

#include <atomic>
#include <cstring>

#include "verbs/soft/streamed_store.hpp"

namespace noria::soft {

void copy_ordered(uint8_t* to, const uint8_t* from, uint64_t bytes) {
  uint64_t at = 0;
  const auto is_aligned = [&] { return (reinterpret_cast<uintptr_t>(to + at) & 7) == 0; };
  // release: each store stays behind the one before; pairs with the reader's acquire.
  for (; at < bytes && !is_aligned(); ++at)
    std::atomic_ref<uint8_t>(to[at]).store(from[at], std::memory_order_release);
  for (; at + 8 <= bytes; at += 8) {
    uint64_t word;
    std::memcpy(&word, from + at, sizeof word);
    std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(to + at))
        .store(word, std::memory_order_release);
  }
  for (; at < bytes; ++at)
    std::atomic_ref<uint8_t>(to[at]).store(from[at], std::memory_order_release);
}

namespace {

// Below this both ways of storing cost the same.
constexpr uint64_t kStreamedBytes = 2048;

void store(StoreChoice::Way way, uint8_t* to, const uint8_t* from, uint64_t bytes) {
  if (way == StoreChoice::Way::streamed)
    store_streamed(to, from, bytes);
  else
    std::memcpy(to, from, bytes);
}

void copy_to_peer(StoreChoice& choice, uint8_t* to, const uint8_t* from, uint64_t bytes) {
  const bool overlaps = to < from + bytes && from < to + bytes;  // our own memory is a target too
  if (bytes < kStreamedBytes || overlaps) {
    std::memmove(to, from, bytes);
    return;
  }
  if (bytes < StoreChoice::kTimedBytes) return store(choice.way(), to, from, bytes);
  const StoreChoice::Way way = choice.next_timed();
  const Nanoseconds start = now_ns();
  store(way, to, from, StoreChoice::kTimedBytes);
  choice.took(way, now_ns() - start);
  store(choice.way(), to + StoreChoice::kTimedBytes, from + StoreChoice::kTimedBytes,
        bytes - StoreChoice::kTimedBytes);
}

void copy_direct(const Peer& peer, Direction direction, std::span<const iovec> local,
                 uint8_t* remote) {
  for (const iovec& piece : local) {
    auto* mine = static_cast<uint8_t*>(piece.iov_base);
    if (direction == Direction::from_peer)
      std::memmove(mine, remote, piece.iov_len);  // may overlap: our own memory is a source too
    else if (piece.iov_len <= kOrderedBytes)
      copy_ordered(remote, mine, piece.iov_len);
    else
      copy_to_peer(peer.stores(), remote, mine, piece.iov_len);
    remote += piece.iov_len;
  }
}

ssize_t attach(const Peer& peer, Direction direction, std::span<const iovec> local,
               std::span<const iovec> remote) {
  const auto call = direction == Direction::to_peer ? &::process_vm_writev : &::process_vm_readv;
  return call(peer.identity().pid, local.data(), local.size(), remote.data(), remote.size(), 0);
}

CopyResult copy_attached(const Peer& peer, Direction direction, std::span<const iovec> local,
                         uint64_t remote, uint64_t bytes) {
  const iovec theirs{reinterpret_cast<void*>(remote), bytes};
  const ssize_t moved = attach(peer, direction, local, {&theirs, 1});
  if (moved == static_cast<ssize_t>(bytes)) return CopyResult::done;
  if (moved >= 0 || errno == EFAULT) return CopyResult::fault;
  // A process that is ending may be refused before it is not found: look which of the two it is.
  return errno == ESRCH || peer.has_ended() ? CopyResult::gone : CopyResult::refused;
}

}  // namespace

CopyResult copy(const Peer& peer, Direction direction, std::span<const iovec> local,
                const Range& remote, uint64_t bytes) {
  if (bytes == 0) return CopyResult::done;
  if (uint8_t* direct = direct_address(peer, remote, bytes); direct != nullptr) {
    copy_direct(peer, direction, local, direct);
    return CopyResult::done;
  }
  if (!peer.can_attach()) return CopyResult::refused;
  if (!peer.confirm_alive()) return CopyResult::gone;
  return copy_attached(peer, direction, local, remote.address, bytes);
}

uint64_t copy_many(const Peer& peer, Direction direction, std::span<const iovec> local,
                   std::span<const iovec> remote, uint64_t bytes) {
  if (bytes == 0 || !peer.can_attach() || !peer.confirm_alive()) return 0;
  const ssize_t moved = attach(peer, direction, local, remote);
  return moved < 0 ? 0 : static_cast<uint64_t>(moved);
}

}  // namespace noria::soft
