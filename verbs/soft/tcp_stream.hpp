// TcpStream: frames (tcp_wire.hpp) over one socket, with buffers of fixed size.
//
// send() hands the kernel what it takes, straight from the caller's memory; the rest is copied
// and goes when there is room. Nothing refers to the caller's memory once it has returned, and who
// takes that memory back meanwhile, in another thread, ends a frame but not the process. Nothing
// blocks. After the first frames nothing is allocated.
//
// Threads: receive(), admit() and fd(): one at a time; the rest: any thread.
#pragma once

#include <sys/uio.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>

#include "verbs/soft/segment.hpp"
#include "verbs/soft/spin_lock.hpp"
#include "verbs/soft/tcp_wire.hpp"

namespace noria::soft {

class TcpStream {
 public:
  explicit TcpStream(Fd fd) : fd_(std::move(fd)) {}
  TcpStream(const TcpStream&) = delete;
  TcpStream& operator=(const TcpStream&) = delete;

  // While false, frames with payload are better not sent: so much is unsent already. A hint.
  bool can_send() const { return unsent_.load(std::memory_order_relaxed) < kEnough; }
  bool has_unsent() const { return unsent_.load(std::memory_order_relaxed) > 0; }  // a hint

  // False: the stream is broken, or so much is unsent that there is no room, which breaks it. The
  // payload is at most kMaxPayload, in at most kMaxSge pieces.
  template <class Body>
  bool send(const Body& body, std::span<const iovec> payload = {}) NORIA_EXCLUDES(write_) {
    return send_frame(Body::kKind, &body, sizeof body, payload, kOutBytes + 1) == Sent::yes;
  }
  // The same for who is not alone in sending payload. not_yet: nothing was sent, since others have
  // left so much unsent. unreadable: nor was it, as the payload is mapped no more; where that
  // vanishes with half of the frame sent, the stream breaks. A broken stream takes what it loses.
  enum class Offer { taken, not_yet, unreadable };
  template <class Body>
  Offer offer(const Body& body, std::span<const iovec> payload) NORIA_EXCLUDES(write_) {
    switch (send_frame(Body::kKind, &body, sizeof body, payload, kEnough)) {
      case Sent::not_yet: return Offer::not_yet;
      case Sent::unreadable: return Offer::unreadable;
      default: return Offer::taken;
    }
  }
  // False: the stream is broken.
  bool flush() NORIA_EXCLUDES(write_);
  void close() NORIA_EXCLUDES(write_);
  // Whether it is broken, or the host at its other end is silent (tcp_socket.hpp). A system call.
  bool is_silent() NORIA_EXCLUDES(write_);

  struct Frame {
    tcp::Header header;
    const uint8_t* body;
    const uint8_t* payload;

    template <class Body>
    bool is(Body* out) const {
      if (header.kind != Body::kKind || header.body_bytes != sizeof(Body)) return false;
      std::memcpy(out, body, sizeof(Body));
      return true;
    }
  };
  // A frame stays until the next call. `nothing`: all that the kernel had has been taken. `broken`:
  // closed, or not of this protocol.
  enum class Event { frame, nothing, broken };
  Event receive(Frame* out);
  // The other side has shown who it is: from now on frames may be as large as they may. Before,
  // nothing larger than a hello is taken, or stored.
  void admit();

  int fd() const { return fd_.get(); }

 private:
  static constexpr size_t kEnough = 512 << 10;
  static constexpr size_t kOutBytes = 2 << 20;  // `kEnough`, one frame, and many without payload
  static constexpr size_t kInBytes = 1 << 20;
  static constexpr size_t kHelloBytes = sizeof(tcp::Header) + sizeof(tcp::Hello);
  static constexpr size_t kMaxBody = 128;

  // not_yet: `enough` or more is unsent. unreadable: the payload cannot be read; nothing was sent.
  enum class Sent { yes, not_yet, unreadable, broken };
  Sent send_frame(tcp::Kind kind, const void* body, size_t bytes, std::span<const iovec> payload,
                  size_t enough) NORIA_EXCLUDES(write_);
  bool flush_locked() NORIA_REQUIRES(write_);
  enum class Kept { yes, no_room, unreadable };
  Kept keep(const iovec& piece) NORIA_REQUIRES(write_);
  Event take(Frame* out);

  Fd fd_;
  SpinLock write_;
  bool is_broken_ NORIA_GUARDED_BY(write_) = false;
  std::unique_ptr<uint8_t[]> out_ NORIA_GUARDED_BY(write_);
  size_t out_begin_ NORIA_GUARDED_BY(write_) = 0, out_end_ NORIA_GUARDED_BY(write_) = 0;
  std::atomic<size_t> unsent_{0};

  bool is_admitted_ = false;
  std::unique_ptr<uint8_t[]> in_;
  uint8_t hello_[kHelloBytes];
  size_t in_begin_ = 0, in_end_ = 0;
};

}  // namespace noria::soft
