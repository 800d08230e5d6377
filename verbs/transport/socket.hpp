// Sockets for the handshake: TCP, non-blocking, numeric addresses only.
//
// Nothing here blocks or resolves names. Failures carry the errno value.
//
// Threads: one at a time per object.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <string>
#include <utility>

#include "base/result.hpp"

namespace noria::transport {

// A file descriptor that closes itself.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket();

  int fd() const { return fd_; }
  bool is_open() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  // A numeric IPv4 or IPv6 address.
  static Result<SocketAddress> parse(const std::string& host, uint16_t port);
  uint16_t port() const;
  std::string text() const;  // "127.0.0.1:4711"
};

Result<Socket> listen_on(const SocketAddress& address, SocketAddress* bound);
// The next waiting connection; a closed Socket when none waits.
Result<Socket> accept_from(const Socket& listener);
// Begins to connect; connect_result() says when and how that ended.
Result<Socket> start_connect(const SocketAddress& address);
// Ok when connected; Code::timed_out for not yet.
Status connect_result(const Socket& socket);

}  // namespace noria::transport
