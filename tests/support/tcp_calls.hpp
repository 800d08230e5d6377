// What a test says on the ports of the TCP copy path, as a caller or as a peer; and a queue pair
// whose peer the test plays.
//
// Threads: one at a time.
#pragma once

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdio>

#include "base/fd.hpp"
#include "tests/support/verbs_link.hpp"
#include "verbs/soft/tcp_wire.hpp"

namespace noria::test {

namespace tcp = soft::tcp;

inline constexpr uint32_t kPortBase = 18600;

// 67 ms, twice: what a request waits for a peer that does not answer.
inline constexpr ConnectSpec kImpatient{.ack_timeout = 14, .retry_count = 1};

inline uint32_t slot_of(uint32_t qpn) { return qpn >> 14; }

// Where the process in that slot, of the device with this GID, is called.
inline sockaddr_in port_of(const ibv_gid& gid, uint32_t slot) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  std::memcpy(&name.sin_addr, gid.raw + 12, sizeof name.sin_addr);
  name.sin_port = htons(static_cast<uint16_t>(kPortBase + slot));
  return name;
}

inline Fd call(const ibv_gid& gid, uint32_t slot) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in name = port_of(gid, slot);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name), 0)
      << "errno " << errno;
  return fd;
}

// A listener where a process of the device would have its own.
inline Fd listen_as(const ibv_gid& gid, uint32_t slot) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const sockaddr_in name = port_of(gid, slot);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  EXPECT_EQ(::listen(fd.get(), 8), 0);
  return fd;
}

template <class Body>
void say(int fd, const Body& body) {
  const tcp::Header header{Body::kKind, sizeof(Body), 0};
  EXPECT_EQ(::send(fd, &header, sizeof header, MSG_NOSIGNAL), ssize_t{sizeof header});
  EXPECT_EQ(::send(fd, &body, sizeof body, MSG_NOSIGNAL), ssize_t{sizeof body});
}

// Whether the other side closes; fails after 20 s.
inline bool is_closed_by_peer(int fd) {
  char bytes[256];
  pollfd p{fd, POLLIN, 0};
  while (::poll(&p, 1, 20'000) == 1)
    if (::recv(fd, bytes, sizeof bytes, 0) <= 0) return true;
  return false;
}

// A slot that no process of this user has, or gets while this lives: its port is the test's own,
// whatever else runs on this host. By its name (verbs/soft/link.cc), as a process claims it.
class PlayedSlot {
 public:
  explicit PlayedSlot(uint32_t own)
      : claim_(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0)), number_(own ^ 1023) {
    while (!claims(number_) && number_ != own) number_ = 1 + number_ % 1023;
    EXPECT_NE(number_, own) << "no slot is free";
  }
  uint32_t number() const { return number_; }

 private:
  bool claims(uint32_t slot) const {
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    const int n = std::snprintf(name.sun_path + 1, sizeof name.sun_path - 1, "noria-soft-%u-%u",
                                static_cast<unsigned>(::getuid()), slot);
    const auto bytes =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + static_cast<size_t>(n));
    return ::bind(claim_.get(), reinterpret_cast<const sockaddr*>(&name), bytes) == 0;
  }

  Fd claim_;
  uint32_t number_;
};

// A queue pair whose peer is what this test plays.
struct Lonely {
  explicit Lonely(const ConnectSpec& connect = kImpatient) {
    peer = peer_of(qp.get());
    listener = listen_as(peer.gid, slot_of(peer.qpn));
    hca.connect(qp.get(), peer, connect);
  }
  Address peer_of(ibv_qp* one) const {
    Address theirs = hca.address_of(one);
    theirs.qpn = played.number() << 14 | (theirs.qpn & ((1u << 14) - 1));
    return theirs;
  }
  Fd accept() const { return Fd(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC)); }
  void expect_given_up() const {
    expect_completion(cq.get(), 1, IBV_WC_RETRY_EXC_ERR);
    ASSERT_EQ(post(qp.get(), {.id = 2}), 0);
    expect_completion(cq.get(), 2, IBV_WC_WR_FLUSH_ERR);
  }
  uint32_t own_slot() const { return slot_of(qp->qp_num); }

  Hca hca;
  Owned<ibv_cq> cq = hca.make_cq();
  Owned<ibv_qp> qp = hca.make_qp(cq.get());
  PlayedSlot played{own_slot()};
  Address peer{};
  Fd listener;
};

// One write each way, whose bytes are looked at.
inline void expect_talk(Link& link, int side, uint64_t seed) {
  constexpr uint32_t kBytes = 300'000;
  paint(link.buffer->data(), kBytes, seed + static_cast<uint64_t>(side));
  link.wire.meet();
  ASSERT_EQ(post(link.qp.get(), link.write(seed, kBytes, link.at(1 << 20))), 0);
  expect_completion(link.cq.get(), seed);
  link.wire.meet();
  EXPECT_EQ(
      first_wrong(link.buffer->data() + (1 << 20), kBytes, seed + static_cast<uint64_t>(side ^ 1)),
      kBytes);
  link.wire.meet();
}

inline LinkSpec link_spec() { return {.bytes = 2 << 20, .connect = kImpatient}; }

inline void run_alone(const Body& body) {
  Crew crew({body});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
}

}  // namespace noria::test
