#include "bucketing/tcp.hpp"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>

#include <cstring>
#include <memory>
#include <optional>

#include "base/mutex.hpp"
#include "base/own_thread.hpp"
#include "bucketing/failure.hpp"

namespace noria::bucketing {
namespace {

// Callers that may wait at the listener: more than any job has ranks on its first connect.
constexpr int kBacklog = 4096;

std::string reason(const std::string& what, const TcpAddress& address, int error) {
  return what + " " + address.text() + ": " + std::strerror(error);
}

Result<Fd, std::string> make_socket(const TcpAddress& address) {
  Fd fd(::socket(address.storage.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!fd.is_open()) return reason("cannot make a socket for", address, errno);
  return fd;
}

void set_option(const Fd& socket, int level, int option, int value) {
  // Every option here improves on a default; where a kernel lacks one the default stands.
  static_cast<void>(::setsockopt(socket.get(), level, option, &value, sizeof value));
}

}  // namespace

std::string TcpAddress::host() const {
  char text[INET6_ADDRSTRLEN] = "";
  if (storage.ss_family == AF_INET)
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in*>(&storage)->sin_addr, text,
              sizeof text);
  if (storage.ss_family == AF_INET6)
    inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_addr, text,
              sizeof text);
  return text;
}

uint16_t TcpAddress::port() const {
  if (storage.ss_family == AF_INET)
    return ntohs(reinterpret_cast<const sockaddr_in*>(&storage)->sin_port);
  if (storage.ss_family == AF_INET6)
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&storage)->sin6_port);
  return 0;
}

std::string TcpAddress::text() const {
  const bool is_v6 = storage.ss_family == AF_INET6;
  return (is_v6 ? "[" + host() + "]" : host()) + ":" + std::to_string(port());
}

bool parse_numeric(const std::string& host, uint16_t port, TcpAddress* address) {
  TcpAddress result;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&result.storage);
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&result.storage);
  if (inet_pton(AF_INET, host.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    result.length = sizeof *v4;
  } else if (inet_pton(AF_INET6, host.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    result.length = sizeof *v6;
  } else {
    return false;
  }
  *address = result;
  return true;
}

namespace {

using Addresses = Result<std::vector<TcpAddress>, std::string>;

Addresses ask_resolver(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* list = nullptr;
  const int error = getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &list);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> owner(list, &freeaddrinfo);
  if (error != 0) return "cannot find the host '" + host + "': " + gai_strerror(error);
  std::vector<TcpAddress> found;
  for (const addrinfo* entry = list; entry != nullptr; entry = entry->ai_next) {
    TcpAddress address;
    if (entry->ai_addrlen > sizeof address.storage) continue;
    std::memcpy(&address.storage, entry->ai_addr, entry->ai_addrlen);
    address.length = entry->ai_addrlen;
    found.push_back(address);
  }
  if (found.empty()) return "the host '" + host + "' has no address";
  return found;
}

// Held by who waits for the answer and by the thread that asks: each may go first.
struct Question {
  Mutex mutex;
  CondVar answered;
  std::optional<Addresses> answer NORIA_GUARDED_BY(mutex);
};

// A thread that is left behind runs code of this library, which must then stay loaded.
void keep_library_loaded() {
  Dl_info self{};
  if (dladdr(reinterpret_cast<const void*>(&keep_library_loaded), &self) != 0)
    static_cast<void>(dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD | RTLD_NODELETE));
}

}  // namespace

Addresses resolve(const std::string& host, uint16_t port, Nanoseconds deadline) {
  TcpAddress numeric;
  if (parse_numeric(host, port, &numeric)) return std::vector<TcpAddress>{numeric};
  const auto question = std::make_shared<Question>();
  OwnThread asking;
  const int error = asking.start([question, host, port] {
    Addresses found = ask_resolver(host, port);
    const MutexLock lock(question->mutex);
    question->answer = std::move(found);
    question->answered.notify_all();
  });
  if (error != 0)
    return "cannot find the host '" + host + "': " + no_thread("the resolver", error).text;
  asking.detach();
  {
    const MutexLock lock(question->mutex);
    while (!question->answer && question->answered.wait_until(question->mutex, deadline)) {
    }
    if (question->answer) return std::move(*question->answer);
  }
  keep_library_loaded();
  return "cannot find the host '" + host +
         "': the resolver did not answer in time; give a numeric address, or look at "
         "/etc/resolv.conf and /etc/hosts";
}

TcpAddress any_interface(const TcpAddress& address) {
  TcpAddress result = address;
  if (address.storage.ss_family == AF_INET)
    reinterpret_cast<sockaddr_in*>(&result.storage)->sin_addr.s_addr = htonl(INADDR_ANY);
  else
    reinterpret_cast<sockaddr_in6*>(&result.storage)->sin6_addr = in6addr_any;
  return result;
}

Result<Fd, std::string> reserve_port(const TcpAddress& address) {
  NORIA_TRY_ASSIGN(Fd fd, make_socket(address));
  if (::bind(fd.get(), address.raw(), address.length) != 0)
    return reason("cannot bind", address, errno);
  // Set after bind(): with it set before, the kernel may pick a free port that another reservation
  // holds. It lets listen_on() have the port that this socket is bound to.
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  return fd;
}

Result<Fd, std::string> listen_on(const TcpAddress& address) {
  NORIA_TRY_ASSIGN(Fd fd, make_socket(address));
  set_option(fd, SOL_SOCKET, SO_REUSEADDR, 1);
  if (::bind(fd.get(), address.raw(), address.length) != 0)
    return reason("cannot bind", address, errno);
  if (::listen(fd.get(), kBacklog) != 0) return reason("cannot listen on", address, errno);
  return fd;
}

Fd accept_from(const Fd& listener) {
  return Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
}

Result<Fd, std::string> start_connect(const TcpAddress& address) {
  NORIA_TRY_ASSIGN(Fd fd, make_socket(address));
  if (::connect(fd.get(), address.raw(), address.length) != 0 && errno != EINPROGRESS)
    return reason("cannot connect to", address, errno);
  return fd;
}

int connect_error(const Fd& socket) {
  int error = 0;
  socklen_t length = sizeof error;
  if (::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

void tune(const Fd& socket) {
  set_option(socket, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(socket, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPIDLE, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPINTVL, 1);
  set_option(socket, IPPROTO_TCP, TCP_KEEPCNT, 8);
  // Keep-alive says nothing while sent bytes wait for their acknowledgement; this bounds that. A
  // stopped peer acknowledges until its receive buffer is full: the control plane's messages are
  // far smaller, but for descriptions of tensors that differ.
  set_option(socket, IPPROTO_TCP, TCP_USER_TIMEOUT, 10'000);
}

namespace {

// By getsockname() or getpeername(); empty where the socket has none.
TcpAddress address_by(int (*ask)(int, sockaddr*, socklen_t*), const Fd& socket) {
  TcpAddress address;
  address.length = sizeof address.storage;
  if (ask(socket.get(), reinterpret_cast<sockaddr*>(&address.storage), &address.length) != 0)
    address = TcpAddress{};
  return address;
}

}  // namespace

TcpAddress local_address(const Fd& socket) { return address_by(&::getsockname, socket); }
TcpAddress peer_address(const Fd& socket) { return address_by(&::getpeername, socket); }

}  // namespace noria::bucketing
