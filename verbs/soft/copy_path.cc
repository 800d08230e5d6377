#include "verbs/soft/copy_path.hpp"

#include <errno.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include <atomic>
#include <cstring>

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

// Between two cores a line that the peer has in its cache costs a transfer to take and another to
// give back: 3 GB/s where the cores share no cache. Past the cache it is 10 GB/s, for the peer's
// first look included (256 KiB, one way). Below 2 KiB both cost the same.
constexpr size_t kStreamedBytes = 2048;

void copy_to_peer(uint8_t* to, const uint8_t* from, size_t bytes) {
#if defined(__SSE2__)
  const bool overlaps = to < from + bytes && from < to + bytes;  // as in copy_direct()
  if (bytes >= kStreamedBytes && !overlaps) {
    const size_t head = -reinterpret_cast<uintptr_t>(to) & 63;
    std::memcpy(to, from, head);
    size_t at = head;
    for (; at + 64 <= bytes; at += 64) {
      const auto* line = reinterpret_cast<const __m128i*>(from + at);
      auto* out = reinterpret_cast<__m128i*>(to + at);
      const __m128i a = _mm_loadu_si128(line), b = _mm_loadu_si128(line + 1);
      const __m128i c = _mm_loadu_si128(line + 2), d = _mm_loadu_si128(line + 3);
      _mm_stream_si128(out, a);
      _mm_stream_si128(out + 1, b);
      _mm_stream_si128(out + 2, c);
      _mm_stream_si128(out + 3, d);
    }
    std::memcpy(to + at, from + at, bytes - at);
    _mm_sfence();  // streamed stores are ordered by nothing else: the completion must not pass them
    return;
  }
#endif
  std::memmove(to, from, bytes);
}

void copy_direct(Direction direction, std::span<const iovec> local, uint8_t* remote) {
  for (const iovec& piece : local) {
    auto* mine = static_cast<uint8_t*>(piece.iov_base);
    if (direction == Direction::from_peer)
      std::memmove(mine, remote, piece.iov_len);  // our own memory is a target too
    else if (piece.iov_len <= kOrderedBytes)
      copy_ordered(remote, mine, piece.iov_len);
    else
      copy_to_peer(remote, mine, piece.iov_len);
    remote += piece.iov_len;
  }
}

CopyResult copy_attached(const Peer& peer, Direction direction, std::span<const iovec> local,
                         uint64_t remote, uint64_t bytes) {
  const iovec theirs{reinterpret_cast<void*>(remote), bytes};
  const auto call = direction == Direction::to_peer ? &::process_vm_writev : &::process_vm_readv;
  const ssize_t moved = call(peer.identity().pid, local.data(), local.size(), &theirs, 1, 0);
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
    copy_direct(direction, local, direct);
    return CopyResult::done;
  }
  if (!peer.can_attach()) return CopyResult::refused;
  if (!peer.confirm_alive(now_ns())) return CopyResult::gone;
  return copy_attached(peer, direction, local, remote.address, bytes);
}

}  // namespace noria::soft
