#include "verbs/transport/socket.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>

namespace noria::transport {
namespace {

constexpr int kBacklog = 128;  // every rank of a large job may call at once

const sockaddr* as_sockaddr(const SocketAddress& address) {
  return reinterpret_cast<const sockaddr*>(&address.storage);
}

Result<Socket> open_tcp(const SocketAddress& address) {
  const int fd =
      socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, IPPROTO_TCP);
  if (fd < 0) return Status::from_errno(Code::no_memory, errno);
  return Socket(fd);
}

void set_option(const Socket& socket, int level, int option) {
  const int on = 1;
  // An option that is refused costs latency, not correctness.
  static_cast<void>(setsockopt(socket.fd(), level, option, &on, sizeof on));
}

}  // namespace

Socket::~Socket() {
  if (fd_ >= 0) close(fd_);
}

Result<SocketAddress> SocketAddress::parse(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found) != 0)
    return Status(Code::bad_argument);
  SocketAddress address;
  std::memcpy(&address.storage, found->ai_addr, found->ai_addrlen);
  address.length = found->ai_addrlen;
  freeaddrinfo(found);
  return address;
}

uint16_t SocketAddress::port() const {
  return ntohs(storage.ss_family == AF_INET6
                   ? reinterpret_cast<const sockaddr_in6&>(storage).sin6_port
                   : reinterpret_cast<const sockaddr_in&>(storage).sin_port);
}

std::string SocketAddress::text() const {
  const bool is_ipv6 = storage.ss_family == AF_INET6;
  char host[INET6_ADDRSTRLEN] = "?";
  if (is_ipv6)
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr, host,
              sizeof host);
  else
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(storage).sin_addr, host, sizeof host);
  char text[INET6_ADDRSTRLEN + 16];
  std::snprintf(text, sizeof text, is_ipv6 ? "[%s]:%u" : "%s:%u", host, port());
  return text;
}

Result<Socket> listen_on(const SocketAddress& address, SocketAddress* bound) {
  NORIA_TRY_ASSIGN(Socket socket, open_tcp(address));
  if (bind(socket.fd(), as_sockaddr(address), address.length) != 0)
    return Status::from_errno(errno == EADDRINUSE ? Code::no_memory : Code::bad_argument, errno);
  if (listen(socket.fd(), kBacklog) != 0) return Status::from_errno(Code::no_memory, errno);
  SocketAddress name;
  name.length = sizeof name.storage;
  if (getsockname(socket.fd(), reinterpret_cast<sockaddr*>(&name.storage), &name.length) != 0)
    return Status::from_errno(Code::internal, errno);
  *bound = name;
  return socket;
}

Result<Socket> accept_from(const Socket& listener) {
  while (true) {
    const int fd = accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (fd >= 0) {
      Socket socket(fd);
      set_option(socket, IPPROTO_TCP, TCP_NODELAY);
      return socket;
    }
    switch (errno) {
      case EINTR:
      case ECONNABORTED:  // that caller gave up; the next may wait
        continue;
      case EAGAIN: return Socket();
      default: return Status::from_errno(Code::no_memory, errno);
    }
  }
}

Result<Socket> start_connect(const SocketAddress& address) {
  NORIA_TRY_ASSIGN(Socket socket, open_tcp(address));
  set_option(socket, IPPROTO_TCP, TCP_NODELAY);
  if (connect(socket.fd(), as_sockaddr(address), address.length) != 0 && errno != EINPROGRESS &&
      errno != EINTR)
    return Status::from_errno(Code::peer_lost, errno);
  return socket;
}

Status connect_result(const Socket& socket) {
  pollfd wanted{.fd = socket.fd(), .events = POLLOUT, .revents = 0};
  if (poll(&wanted, 1, 0) <= 0) return Status(Code::timed_out);
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  return error == 0 ? Status() : Status::from_errno(Code::peer_lost, error);
}

}  // namespace noria::transport
