#include "verbs/soft/tcp_stream.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "verbs/soft/device_copy.hpp"
#include "verbs/soft/own_pages.hpp"
#include "verbs/soft/shared_layout.hpp"
#include "verbs/soft/tcp_socket.hpp"

namespace noria::soft {

TcpStream::Sent TcpStream::send_frame(tcp::Kind kind, const void* body, size_t bytes,
                                      std::span<const iovec> payload, size_t enough) {
  const AsDevice as_device;  // it reads the application's memory, as a card does
  tcp::Header header{kind, static_cast<uint16_t>(bytes), 0};
  iovec pieces[2 + kMaxSge] = {{&header, sizeof header}, {const_cast<void*>(body), bytes}};
  size_t count = 2;
  for (const iovec& piece : payload) {
    pieces[count++] = piece;
    header.payload_bytes += static_cast<uint32_t>(piece.iov_len);
  }
  SpinGuard guard(write_);
  if (is_broken_) return Sent::broken;
  const size_t kept = out_end_ - out_begin_;
  if (kept >= enough) return Sent::not_yet;
  size_t sent = 0;
  if (kept == 0) {
    msghdr message{};
    message.msg_iov = pieces;
    message.msg_iovlen = count;
    const ssize_t n = ::sendmsg(fd_.get(), &message, MSG_NOSIGNAL);
    if (n < 0 && errno == EFAULT) return Sent::unreadable;
    is_broken_ = n < 0 && errno != EAGAIN && errno != EINTR;
    if (n > 0) sent = static_cast<size_t>(n);
  }
  const bool has_begun = sent > 0;
  Kept rest = is_broken_ ? Kept::no_room : Kept::yes;
  for (size_t i = 0; i < count && rest == Kept::yes; ++i) {
    const size_t skip = std::min(sent, pieces[i].iov_len);
    sent -= skip;
    rest = keep({static_cast<uint8_t*>(pieces[i].iov_base) + skip, pieces[i].iov_len - skip});
  }
  if (rest == Kept::unreadable && !has_begun) {
    out_end_ = out_begin_ + kept;
    return Sent::unreadable;
  }
  is_broken_ = rest != Kept::yes;
  // The kernel may have stopped at a page that was away, or for a signal, with room left: then no
  // edge would tell of room, and what is kept would stay.
  if (kept == 0)
    flush_locked();
  else
    unsent_.store(out_end_ - out_begin_, std::memory_order_relaxed);
  return is_broken_ ? Sent::broken : Sent::yes;
}

TcpStream::Kept TcpStream::keep(const iovec& piece) {
  if (piece.iov_len == 0) return Kept::yes;
  if (out_ == nullptr) out_.reset(new (std::nothrow) uint8_t[kOutBytes]);
  if (out_ == nullptr) return Kept::no_room;
  if (piece.iov_len > kOutBytes - out_end_) {
    std::memmove(out_.get(), out_.get() + out_begin_, out_end_ - out_begin_);
    out_end_ -= out_begin_;
    out_begin_ = 0;
  }
  if (piece.iov_len > kOutBytes - out_end_) return Kept::no_room;
  if (!copy_own(out_.get() + out_end_, piece.iov_base, piece.iov_len)) return Kept::unreadable;
  out_end_ += piece.iov_len;
  return Kept::yes;
}

bool TcpStream::flush_locked() {
  while (out_begin_ != out_end_ && !is_broken_) {
    const ssize_t n =
        ::send(fd_.get(), out_.get() + out_begin_, out_end_ - out_begin_, MSG_NOSIGNAL);
    if (n > 0) out_begin_ += static_cast<size_t>(n);
    if (n < 0 && errno == EAGAIN) break;
    is_broken_ = n < 0 && errno != EINTR;
  }
  if (out_begin_ == out_end_) out_begin_ = out_end_ = 0;
  unsent_.store(out_end_ - out_begin_, std::memory_order_relaxed);
  return !is_broken_;
}

bool TcpStream::flush() {
  SpinGuard guard(write_);
  return flush_locked();
}

void TcpStream::close() {
  SpinGuard guard(write_);
  is_broken_ = true;
  fd_.reset();
}

bool TcpStream::is_silent() {
  SpinGuard guard(write_);
  return is_broken_ || soft::is_silent(fd_.get());
}

void TcpStream::admit() {
  is_admitted_ = true;
  in_begin_ = in_end_ = 0;
  in_.reset(new (std::nothrow) uint8_t[kInBytes]);
}

TcpStream::Event TcpStream::take(Frame* out) {
  const uint8_t* const buffer = is_admitted_ ? in_.get() : hello_;
  const size_t there = in_end_ - in_begin_;
  if (there < sizeof(tcp::Header)) return Event::nothing;
  std::memcpy(&out->header, buffer + in_begin_, sizeof out->header);
  const tcp::Header& header = out->header;
  if (header.body_bytes > kMaxBody || header.payload_bytes > tcp::kMaxPayload) return Event::broken;
  const size_t bytes = sizeof header + header.body_bytes + header.payload_bytes;
  if (!is_admitted_ && (header.kind != tcp::Kind::hello || bytes != kHelloBytes))
    return Event::broken;
  if (there < bytes) return Event::nothing;
  out->body = buffer + in_begin_ + sizeof header;
  out->payload = out->body + header.body_bytes;
  in_begin_ += bytes;
  return Event::frame;
}

TcpStream::Event TcpStream::receive(Frame* out) {
  if (is_admitted_ && in_ == nullptr) return Event::broken;  // no memory
  uint8_t* const buffer = is_admitted_ ? in_.get() : hello_;
  const size_t capacity = is_admitted_ ? kInBytes : kHelloBytes;
  while (true) {
    if (const Event event = take(out); event != Event::nothing) return event;
    if (in_begin_ == in_end_ || in_begin_ > capacity / 2) {  // else the next frame has room
      std::memmove(buffer, buffer + in_begin_, in_end_ - in_begin_);
      in_end_ -= in_begin_;
      in_begin_ = 0;
    }
    const ssize_t n = ::recv(fd_.get(), buffer + in_end_, capacity - in_end_, 0);
    if (n == 0) return Event::broken;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno == EAGAIN ? Event::nothing : Event::broken;
    in_end_ += static_cast<size_t>(n);
  }
}

}  // namespace noria::soft
