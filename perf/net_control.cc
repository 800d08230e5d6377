#include "perf/net_control.hpp"

#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdio>
#include <cstring>
#include <utility>

#include "bucketing/tcp.hpp"

namespace noria::perf {
namespace {

constexpr uint32_t kMagic = 0x6e706631;  // "npf1"
constexpr uint32_t kText = 0, kFailure = 1;
constexpr uint32_t kMostBytes = 64 << 10;  // of a text: what is longer is a stranger's
constexpr Nanoseconds kConnectLimit = 10_s;

// False at the deadline.
bool wait_for(const Fd& socket, short events, Nanoseconds deadline) {
  while (true) {
    const Nanoseconds left = deadline - now_ns();
    if (left <= 0) return false;
    pollfd ready{.fd = socket.get(), .events = events, .revents = 0};
    const int n = ::poll(&ready, 1, static_cast<int>(left / 1_ms) + 1);
    if (n > 0) return true;
    if (n < 0 && errno != EINTR) return true;  // the next call on the socket says what is wrong
  }
}

}  // namespace

void NetControl::throw_gone() const {
  throw ToolError(Exit::peer, peer_ + " is gone; its own output says why, if it had time to");
}

void NetControl::read_all(void* data, size_t bytes, Nanoseconds deadline) {
  for (size_t done = 0; done < bytes;) {
    if (!wait_for(socket_, POLLIN, deadline))
      throw ToolError(Exit::peer, peer_ + " has not answered; does it still run?");
    const ssize_t n = ::recv(socket_.get(), static_cast<char*>(data) + done, bytes - done, 0);
    if (n < 0 && (errno == EINTR || errno == EAGAIN)) continue;
    if (n <= 0) throw_gone();
    done += static_cast<size_t>(n);
  }
}

NetControl::Header NetControl::read_header(Nanoseconds deadline) {
  Header header{};
  read_all(&header, sizeof header, deadline);
  if (header.magic != kMagic || header.bytes > kMostBytes)
    throw ToolError(Exit::peer, peer_ + " is another program, or one of another version");
  return header;
}

std::string NetControl::receive(Nanoseconds limit) {
  const Nanoseconds deadline = now_ns() + limit;
  const Header header = read_header(deadline);
  std::string text(header.bytes, '\0');
  read_all(text.data(), text.size(), deadline);
  if (header.kind == kText) return text;
  const bool is_known = header.code >= 1 && header.code <= 4;
  throw ToolError(is_known ? static_cast<Exit>(header.code) : Exit::peer,
                  peer_ + ": " + printable(text));
}

bool NetControl::write_all(const Header& header, std::string_view text) {
  std::string frame(reinterpret_cast<const char*>(&header), sizeof header);
  frame += text;
  const Nanoseconds deadline = now_ns() + kNetPatience;
  for (size_t done = 0; done < frame.size();) {
    const ssize_t n = ::send(socket_.get(), frame.data() + done, frame.size() - done, MSG_NOSIGNAL);
    if (n > 0) {
      done += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      if (!wait_for(socket_, POLLOUT, deadline)) return false;
    } else if (errno != EINTR) {
      return false;
    }
  }
  return true;
}

void NetControl::send(std::string_view text) {
  const Header header{kMagic, kText, 0, static_cast<uint32_t>(text.size())};
  if (!write_all(header, text)) throw_gone();
}

void NetControl::send_failure(const ToolError& error) {
  if (std::exchange(has_failed_, true)) return;
  const std::string_view text(error.what());
  const Header header{kMagic, kFailure, static_cast<uint32_t>(error.code()),
                      static_cast<uint32_t>(text.size())};
  static_cast<void>(write_all(header, text));
}

void NetControl::look_for_failure() {
  Header header{};
  const ssize_t n = ::recv(socket_.get(), &header, sizeof header, MSG_PEEK | MSG_DONTWAIT);
  if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR)) throw_gone();
  if (n == sizeof header && header.kind == kFailure) receive();
}

Fd listen_for_client(uint16_t port) {
  bucketing::TcpAddress any;
  bucketing::parse_numeric("::", port, &any);
  auto listener = bucketing::listen_on(any);
  if (!listener) {  // a host without IPv6
    bucketing::parse_numeric("0.0.0.0", port, &any);
    listener = bucketing::listen_on(any);
  }
  if (!listener) throw ToolError(Exit::environment, listener.failure() + "; -p takes another port");
  return std::move(*listener);
}

namespace {

NetControl accept_client(const Fd& listener) {
  constexpr int kRestMs = 100, kMostRefusals = 20;
  for (int refusals = 0; true;) {
    pollfd ready{.fd = listener.get(), .events = POLLIN, .revents = 0};
    ::poll(&ready, 1, -1);
    Fd client = bucketing::accept_from(listener);
    if (!client.is_open()) {
      if (errno == EAGAIN || errno == EINTR || errno == ECONNABORTED) continue;  // it gave up
      // Another process may give back what the host lacks; until then the client is in the queue.
      if (refusals == kMostRefusals)
        throw ToolError(Exit::environment, std::string("a client calls and cannot be let in: ") +
                                               std::strerror(errno) +
                                               "; raise the limit on open files (ulimit -n)");
      ++refusals;
      ::poll(nullptr, 0, kRestMs);
      continue;
    }
    bucketing::tune(client);
    const std::string name = "the client at " + bucketing::peer_address(client).text();
    return NetControl(std::move(client), name);
  }
}

// Its first word. A failure before anything was asked is a stranger's, whatever its exit code.
std::string what_is_asked(NetControl& control) {
  constexpr Nanoseconds kTimeToAsk = 2_s;
  try {
    return control.receive(kTimeToAsk);
  } catch (const ToolError& error) {
    throw ToolError(Exit::peer, error.what());
  }
}

}  // namespace

NetControl wait_for_client(const Fd& listener, const char* tool,
                           const std::function<void(NetControl&, const std::string&)>& takes) {
  while (true) {
    NetControl control = accept_client(listener);
    try {
      takes(control, what_is_asked(control));
      return control;
    } catch (const ToolError& error) {
      control.send_failure(error);
      if (error.code() != Exit::peer) throw;
      std::fprintf(stderr, "%s: %s; waits for another\n", tool, error.what());
    }
  }
}

NetControl connect_to_server(const std::string& host, uint16_t port, const std::string& advice) {
  const Nanoseconds deadline = now_ns() + kConnectLimit;
  const auto addresses = bucketing::resolve(host, port, deadline);
  if (!addresses) throw ToolError(Exit::usage, addresses.failure());
  std::string why;
  for (const bucketing::TcpAddress& address : *addresses) {
    auto socket = bucketing::start_connect(address);
    if (!socket) {
      why = socket.failure();
      continue;
    }
    const bool in_time = wait_for(*socket, POLLOUT, deadline);
    const int error = in_time ? bucketing::connect_error(*socket) : ETIMEDOUT;
    if (error == 0) {
      bucketing::tune(*socket);
      return NetControl(std::move(*socket), "the server");
    }
    why = "cannot connect to " + address.text() + ": " + std::strerror(error);
  }
  throw ToolError(Exit::peer, why + "; " + advice);
}

}  // namespace noria::perf
