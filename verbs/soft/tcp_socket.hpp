// The sockets of the TCP copy path: IPv4, non-blocking, closed by exec and with the process.
//
// Addresses are in network byte order, ports in the host's. What fails leaves errno.
//
// Threads: any thread.
#pragma once

#include <netinet/in.h>

#include <cstdint>
#include <string>

#include "verbs/soft/segment.hpp"

namespace noria::soft {

// Listens there and nowhere else.
Fd listen_tcp(in_addr_t address, uint16_t port);

// Begins to call; whether somebody answers is seen by sending. `from` is the address that the other
// side sees.
Fd call_tcp(in_addr_t from, in_addr_t to, uint16_t port);

struct TcpCaller {
  Fd fd;
  in_addr_t address = 0;
};
TcpCaller accept_tcp(int listener);

// Whether the host at the other end has left the kernel's last question unanswered: a cut cable, a
// host that is gone. A process that is stopped or slow is not silent, for its kernel answers. A
// system call; where there is nothing under way the kernel asks once a second.
bool is_silent(int fd);

// For people.
std::string address_text(in_addr_t address, uint16_t port);

}  // namespace noria::soft
