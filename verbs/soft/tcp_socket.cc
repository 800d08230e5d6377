#include "verbs/soft/tcp_socket.hpp"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <cerrno>

namespace noria::soft {
namespace {

constexpr int kBacklog = 128;
// A host that answers so many questions in a row with nothing is gone: the connection ends by
// itself. Long beside what queue pairs wait (4 s), so that they decide. No TCP_USER_TIMEOUT, which
// would also end it where a stopped process takes nothing in while its kernel answers.
constexpr int kProbeSeconds = 1;
constexpr int kProbes = 60;

Fd make_socket() { return Fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)); }

sockaddr_in name_of(in_addr_t address, uint16_t port) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  name.sin_addr.s_addr = address;
  name.sin_port = htons(port);
  return name;
}

bool bind_to(int fd, in_addr_t address, uint16_t port) {
  const sockaddr_in name = name_of(address, port);
  return ::bind(fd, reinterpret_cast<const sockaddr*>(&name), sizeof name) == 0;
}

void set(int fd, int level, int option, int value) {
  ::setsockopt(fd, level, option, &value, sizeof value);
}

void set_up(int fd) {
  set(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set(fd, IPPROTO_TCP, TCP_KEEPIDLE, kProbeSeconds);
  set(fd, IPPROTO_TCP, TCP_KEEPINTVL, kProbeSeconds);
  set(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

}  // namespace

Fd listen_tcp(in_addr_t address, uint16_t port) {
  Fd fd = make_socket();
  if (!fd.is_open()) return fd;
  set(fd.get(), SOL_SOCKET, SO_REUSEADDR, 1);  // connections of an earlier owner may linger
  if (!bind_to(fd.get(), address, port) || ::listen(fd.get(), kBacklog) != 0) return Fd();
  return fd;
}

Fd call_tcp(in_addr_t from, in_addr_t to, uint16_t port) {
  Fd fd = make_socket();
  if (!fd.is_open()) return fd;
  set_up(fd.get());
  set(fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, 1);
  const sockaddr_in name = name_of(to, port);
  if (!bind_to(fd.get(), from, 0) ||
      (::connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name) != 0 &&
       errno != EINPROGRESS))
    return Fd();
  return fd;
}

TcpCaller accept_tcp(int listener) {
  sockaddr_in name{};
  socklen_t bytes = sizeof name;
  TcpCaller caller{Fd(::accept4(listener, reinterpret_cast<sockaddr*>(&name), &bytes,
                                SOCK_CLOEXEC | SOCK_NONBLOCK)),
                   0};
  if (!caller.fd.is_open()) return caller;
  set_up(caller.fd.get());
  caller.address = name.sin_addr.s_addr;
  return caller;
}

bool is_silent(int fd) {
  tcp_info info{};
  socklen_t bytes = sizeof info;
  if (::getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &bytes) != 0) return true;
  return info.tcpi_state != TCP_ESTABLISHED || info.tcpi_retransmits > 0 || info.tcpi_probes > 0;
}

std::string address_text(in_addr_t address, uint16_t port) {
  char text[INET_ADDRSTRLEN] = {};
  ::inet_ntop(AF_INET, &address, text, sizeof text);
  return std::string(text) + ":" + std::to_string(port);
}

}  // namespace noria::soft
