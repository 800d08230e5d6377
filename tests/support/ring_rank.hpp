// One rank of a ring in a process of its own: control plane, device and ring, as a communicator has
// them, and a loop that drives one collective. The parent makes the meeting point before it forks.
//
// Threads: one.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>

#include "bucketing/control.hpp"
#include "bucketing/ring.hpp"
#include "tests/support/transport_pair.hpp"

namespace noria::test {

// Where the ranks meet: a listening socket of the parent, inherited by all.
class MeetingPoint {
 public:
  MeetingPoint() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(fd_, reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
    EXPECT_EQ(listen(fd_, 64), 0);
    socklen_t length = sizeof address;
    EXPECT_EQ(getsockname(fd_, reinterpret_cast<sockaddr*>(&address), &length), 0);
    port_ = ntohs(address.sin_port);
  }
  ~MeetingPoint() { close(fd_); }
  MeetingPoint(const MeetingPoint&) = delete;
  MeetingPoint& operator=(const MeetingPoint&) = delete;

  // In a child, once.
  std::unique_ptr<bucketing::ControlPlane> join(int32_t rank, int32_t size) const {
    auto joined = bucketing::ControlPlane::join({.rank = rank,
                                                 .size = size,
                                                 .root_host = "127.0.0.1",
                                                 .root_port = port_,
                                                 .listener_fd = rank == 0 ? dup(fd_) : -1,
                                                 .token_low = 7,
                                                 .token_high = 11,
                                                 .deadline = now_ns() + kPatience});
    if (!joined) ADD_FAILURE() << joined.failure().text;
    return joined ? std::move(*joined) : nullptr;
  }

 private:
  int fd_;
  uint16_t port_ = 0;
};

class RingRank {
 public:
  RingRank(const MeetingPoint& point, int32_t rank, int32_t size, const char* fetch)
      : provider_(provider_from_environment()) {
    Params params = params_from_environment();
    params.ring_fetch = fetch;
    control = point.join(rank, size);
    domain = make_domain(provider_, params);
    if (control == nullptr || domain == nullptr) return;
    auto connected =
        bucketing::Ring::connect(*domain, *control, params, "127.0.0.1", now_ns() + kPatience);
    if (!connected) ADD_FAILURE() << connected.failure().text;
    if (connected) ring = std::move(*connected);
  }
  ~RingRank() {
    // Nobody hangs up on one that still works.
    if (control != nullptr) control->leave(now_ns() + kPatience);
  }

  int32_t rank() const { return control->rank(); }
  int32_t size() const { return control->size(); }

  // Drives it to its end. With more ranks than cores the others must get their turn.
  ::testing::AssertionResult run(bucketing::Collective& collective) {
    using bucketing::Ring;
    ring->start(collective);
    const Nanoseconds deadline = now_ns() + kPatience;
    Nanoseconds idle_since = 0;
    for (;;) {
      switch (ring->advance()) {
        case Ring::Progress::finished: return ::testing::AssertionSuccess();
        case Ring::Progress::failed: return ::testing::AssertionFailure() << ring->failure().text;
        case Ring::Progress::some: idle_since = 0; break;
        case Ring::Progress::none: {
          const Nanoseconds now = now_ns();
          if (now > deadline)
            return ::testing::AssertionFailure() << "waits for " << ring->waiting_for();
          if (idle_since == 0) idle_since = now;
          if (now - idle_since < 20_us) break;
          EXPECT_TRUE(domain->arm_and_wait(now + 1_ms, -1).is_ok());
          idle_since = 0;
          break;
        }
      }
    }
  }

 private:
  std::shared_ptr<const verbs::Provider> provider_;

 public:
  std::unique_ptr<bucketing::ControlPlane> control;
  std::unique_ptr<transport::Domain> domain;
  std::unique_ptr<bucketing::Ring> ring;
};

}  // namespace noria::test
