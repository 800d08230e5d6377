#include "verbs/soft/link.hpp"

#include <errno.h>
#include <fcntl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdio>
#include <cstring>

#include "base/log.hpp"
#include "verbs/soft/shared_layout.hpp"

namespace noria::soft {
namespace {

constexpr int kBacklog = 128;

struct Name {
  sockaddr_un address{};
  socklen_t bytes = 0;
};

// "\0noria-soft-<uid>-<slot>": abstract, so no file; by user, so that users do not collide.
Name slot_name(uint32_t slot) {
  Name name;
  name.address.sun_family = AF_UNIX;
  const int n = std::snprintf(name.address.sun_path + 1, sizeof name.address.sun_path - 1,
                              "noria-soft-%u-%u", static_cast<unsigned>(::getuid()), slot);
  name.bytes = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(n));
  return name;
}

Fd make_socket() { return Fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

// False: the socket takes nothing more now (errno EAGAIN) or is dead.
bool send_now(int fd, const LinkMessage& message, const int* fds, size_t fd_count) {
  iovec data{const_cast<LinkMessage*>(&message), sizeof message};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kLinkFds)] = {};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  if (fd_count > 0) {
    header.msg_control = control;
    header.msg_controllen = CMSG_SPACE(sizeof(int) * fd_count);
    cmsghdr* rights = CMSG_FIRSTHDR(&header);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(sizeof(int) * fd_count);
    std::memcpy(CMSG_DATA(rights), fds, sizeof(int) * fd_count);
  }
  return ::sendmsg(fd, &header, MSG_NOSIGNAL) == static_cast<ssize_t>(sizeof message);
}

}  // namespace

Result<ClaimedSlot> claim_slot(uint32_t first) {
  for (uint32_t i = 0; i < kSlots - 1; ++i) {
    const uint32_t slot = 1 + (first + i) % (kSlots - 1);
    Fd fd = make_socket();
    if (!fd.is_open()) return Status::from_errno(Code::no_memory, errno);
    const Name name = slot_name(slot);
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name.address), name.bytes) != 0) {
      if (errno == EADDRINUSE) continue;
      return Status::from_errno(Code::bad_state, errno);
    }
    if (::listen(fd.get(), kBacklog) != 0) return Status::from_errno(Code::bad_state, errno);
    return ClaimedSlot{slot, std::move(fd)};
  }
  return Status::from_errno(Code::no_memory, EADDRINUSE);
}

Link Link::connect(uint32_t slot) {
  Link link;
  link.fd_ = make_socket();
  const Name name = slot_name(slot);
  if (!link.is_open()) return link;
  if (::connect(link.fd(), reinterpret_cast<const sockaddr*>(&name.address), name.bytes) != 0) {
    link.is_busy_ = errno == EAGAIN;
    link.fd_.reset();
  } else if (!link.identify()) {
    link.fd_.reset();
  }
  return link;
}

Link Link::accept(int listener) {
  Link link;
  link.fd_ = Fd(::accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (link.is_open() && !link.identify()) link.fd_.reset();
  return link;
}

bool Link::identify() {
  ucred credentials{};
  socklen_t bytes = sizeof credentials;
  if (::getsockopt(fd(), SOL_SOCKET, SO_PEERCRED, &credentials, &bytes) != 0) return false;
  if (credentials.uid != ::geteuid()) {
    log(LogLevel::warn, "link: process %d is of user %u, not ours: refused", credentials.pid,
        credentials.uid);
    return false;
  }
  pid_ = credentials.pid;
  return true;
}

bool Link::send(const LinkMessage& message, const int* fds, size_t fd_count) {
  if (unsent_.empty()) {
    if (send_now(fd(), message, fds, fd_count)) return true;
    if (errno != EAGAIN) return false;
  }
  Unsent& kept = unsent_.emplace_back();
  kept.message = message;
  kept.fd_count = fd_count;
  for (size_t i = 0; i < fd_count; ++i) kept.fds[i] = Fd(::fcntl(fds[i], F_DUPFD_CLOEXEC, 0));
  return true;
}

bool Link::flush() {
  for (; !unsent_.empty(); unsent_.pop_front()) {
    const Unsent& first = unsent_.front();
    int fds[kLinkFds];
    for (size_t i = 0; i < first.fd_count; ++i) fds[i] = first.fds[i].get();
    if (!send_now(fd(), first.message, fds, first.fd_count)) return errno == EAGAIN;
  }
  return true;
}

namespace {
bool has_room_for_descriptors(int fd) {
  Fd room[kLinkFds];
  return std::all_of(std::begin(room), std::end(room), [fd](Fd& each) {
    each = Fd(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
    return each.is_open() || errno == EBADF;
  });
}
}  // namespace

Link::Event Link::receive(Received* out) {
  if (!has_room_for_descriptors(fd())) return Event::no_room;
  iovec data{&out->message, sizeof out->message};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kLinkFds)] = {};
  msghdr header{};
  header.msg_iov = &data;
  header.msg_iovlen = 1;
  header.msg_control = control;
  header.msg_controllen = sizeof control;
  const ssize_t n = ::recvmsg(fd(), &header, MSG_CMSG_CLOEXEC);
  if (n < 0) return errno == EAGAIN || errno == EINTR ? Event::nothing : Event::closed;
  out->fd_count = 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&header); c != nullptr; c = CMSG_NXTHDR(&header, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof fd);
      Fd received(fd);
      if (out->fd_count < kLinkFds) out->fds[out->fd_count++] = std::move(received);
    }
  }
  if (n == 0) return Event::closed;
  if (n != sizeof out->message || out->message.magic != kLinkMagic ||
      out->message.version != kLinkVersion) {
    log(LogLevel::warn, "link: process %d does not speak version %u of this library: refused", pid_,
        kLinkVersion);
    return Event::closed;
  }
  return Event::message;
}

}  // namespace noria::soft
