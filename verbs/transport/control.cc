#include "verbs/transport/control.hpp"

#include <cerrno>

namespace noria::transport {

Progress ControlSocket::pump_send() {
  while (out_done_ < out_size_) {
    const ssize_t sent = ::send(socket_.fd(), out_.data() + out_done_, out_size_ - out_done_,
                                MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent >= 0) {
      out_done_ += static_cast<size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      return Progress::pending;
    } else if (errno != EINTR) {
      return Progress::closed;
    }
  }
  return Progress::done;
}

Progress ControlSocket::pump_receive() {
  if (is_complete_) in_size_ = 0, is_complete_ = false;
  while (true) {
    size_t wanted = sizeof(wire::Control);
    if (in_size_ >= sizeof(uint32_t) && read<uint32_t>() != wire::kControlMagic)
      return Progress::garbage;
    if (in_size_ >= sizeof(wire::Control)) {
      wanted = header().bytes;
      if (wanted < sizeof(wire::Control) || wanted > wire::kMaxControlBytes)
        return Progress::garbage;
      if (in_size_ == wanted) {
        is_complete_ = true;
        return Progress::done;
      }
    }
    const ssize_t got = recv(socket_.fd(), in_.data() + in_size_, wanted - in_size_, MSG_DONTWAIT);
    if (got > 0) {
      in_size_ += static_cast<size_t>(got);
    } else if (got < 0 && errno == EINTR) {
      continue;
    } else if (got < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return Progress::pending;
    } else {
      return Progress::closed;
    }
  }
}

}  // namespace noria::transport
