// TCP sockets as the control plane needs them: non-blocking, closed on exec, IPv4 and IPv6.
//
// Only resolve() may block, when the host is a name: it asks the resolver on a thread of its own,
// because nothing bounds the resolver's time. The rest returns at once; failures are one line with
// the address and the system's reason.
//
// Threads: any thread.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/fd.hpp"
#include "base/result.hpp"

namespace noria::bucketing {

struct TcpAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* raw() const { return reinterpret_cast<const sockaddr*>(&storage); }
  std::string host() const;  // numeric
  uint16_t port() const;
  std::string text() const;  // "10.0.0.1:29529", "[::1]:29529"
};

// Where `host` (a name or a number) may be reached, best first; never an empty list. Waits for the
// resolver until the deadline at most.
Result<std::vector<TcpAddress>, std::string> resolve(const std::string& host, uint16_t port,
                                                     Nanoseconds deadline);
// A numeric address without asking the resolver; false when it is a name.
bool parse_numeric(const std::string& host, uint16_t port, TcpAddress* address);
// The same port on every interface of the same family.
TcpAddress any_interface(const TcpAddress& address);

// Holds the port without listening, so that a listener can be opened on it later, by this process
// or a child: what the parent of all ranks must not do is listen itself, as callers would then wait
// in its queue after rank 0 was killed.
Result<Fd, std::string> reserve_port(const TcpAddress& address);
Result<Fd, std::string> listen_on(const TcpAddress& address);
// A connection that waits at the listener; closed when none does.
Fd accept_from(const Fd& listener);

// Begins to connect; connect_error() tells how it ended once the socket is writable.
Result<Fd, std::string> start_connect(const TcpAddress& address);
int connect_error(const Fd& socket);  // 0 or an errno value

// Small messages go at once; a host that is gone, or a cut link, is found within ten seconds. A
// stopped process keeps its sockets: its kernel answers for it.
void tune(const Fd& socket);

TcpAddress local_address(const Fd& socket);
TcpAddress peer_address(const Fd& socket);

}  // namespace noria::bucketing
