// The TCP copy path against cut connections, strangers, and peers that say nothing or nonsense.
#include <arpa/inet.h>
#include <poll.h>
#include <sched.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <optional>
#include <string>

#include "base/fd.hpp"
#include "tests/support/verbs_link.hpp"
#include "verbs/soft/tcp_wire.hpp"

namespace noria::test {
namespace {

namespace tcp = soft::tcp;

constexpr uint32_t kPortBase = 18600;

// 67 ms, twice: what a request waits for a peer that does not answer.
constexpr ConnectSpec kImpatient{.ack_timeout = 14, .retry_count = 1};

uint32_t slot_of(uint32_t qpn) { return qpn >> 14; }

// Where the process in that slot, of the device with this GID, is called.
sockaddr_in port_of(const ibv_gid& gid, uint32_t slot) {
  sockaddr_in name{};
  name.sin_family = AF_INET;
  std::memcpy(&name.sin_addr, gid.raw + 12, sizeof name.sin_addr);
  name.sin_port = htons(static_cast<uint16_t>(kPortBase + slot));
  return name;
}

Fd call(const ibv_gid& gid, uint32_t slot) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const sockaddr_in name = port_of(gid, slot);
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name), 0)
      << "errno " << errno;
  return fd;
}

// A listener where a process of the device would have its own.
Fd listen_as(const ibv_gid& gid, uint32_t slot) {
  Fd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int on = 1;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  const sockaddr_in name = port_of(gid, slot);
  EXPECT_EQ(::bind(fd.get(), reinterpret_cast<const sockaddr*>(&name), sizeof name), 0);
  EXPECT_EQ(::listen(fd.get(), 8), 0);
  return fd;
}

// Ends all TCP connections of this process, as a firewall does that forgets them.
int cut_connections() {
  int count = 0;
  for (int fd = 3; fd < 256; ++fd) {
    sockaddr_in name{};
    socklen_t bytes = sizeof name;
    if (::getpeername(fd, reinterpret_cast<sockaddr*>(&name), &bytes) != 0 ||
        name.sin_family != AF_INET)
      continue;
    EXPECT_EQ(::shutdown(fd, SHUT_RDWR), 0);
    ++count;
  }
  return count;
}

template <class Body>
void say(int fd, const Body& body) {
  const tcp::Header header{Body::kKind, sizeof(Body), 0};
  EXPECT_EQ(::send(fd, &header, sizeof header, MSG_NOSIGNAL), ssize_t{sizeof header});
  EXPECT_EQ(::send(fd, &body, sizeof body, MSG_NOSIGNAL), ssize_t{sizeof body});
}

// Whether the other side closes; fails after 20 s.
bool is_closed_by_peer(int fd) {
  char bytes[256];
  pollfd p{fd, POLLIN, 0};
  while (::poll(&p, 1, 20'000) == 1)
    if (::recv(fd, bytes, sizeof bytes, 0) <= 0) return true;
  return false;
}

// One write each way, whose bytes are looked at.
void expect_talk(Link& link, int side, uint64_t seed) {
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

LinkSpec link_spec() { return {.bytes = 2 << 20, .connect = kImpatient}; }

TEST(SoftTcp, A_cut_connection_is_told_to_both_sides_and_the_queue_pairs_serve_again) {
  run_pair([](Post& p) {
    Link link(p, link_spec());
    expect_talk(link, p.side, 10);
    if (p.side == 0) {
      EXPECT_GE(cut_connections(), 1);
    }
    link.wire.meet();
    ASSERT_EQ(post(link.qp.get(), link.write(1, 4096, link.remote)), 0);
    ASSERT_EQ(post(link.qp.get(), link.write(2, 4096, link.remote)), 0);
    // Expect: as where no answer comes, on hardware.
    expect_completion(link.cq.get(), 1, IBV_WC_RETRY_EXC_ERR);
    expect_completion(link.cq.get(), 2, IBV_WC_WR_FLUSH_ERR);
    link.wire.meet();
    link.reconnect();
    expect_talk(link, p.side, 20);
  });
}

TEST(SoftTcp, A_connection_that_is_cut_under_load_ends_everything_queued) {
  Crew crew({[](Post& p) {
               Link link(p, link_spec());
               uint64_t posted = 0, done = 0;
               ibv_wc wc{};
               do {
                 for (; posted - done < 16; ++posted)
                   ASSERT_EQ(post(link.qp.get(), link.write(posted, 1 << 20, link.remote)), 0);
                 wc = wait_completion(link.cq.get());
                 ASSERT_EQ(wc.wr_id, done++);
                 if (done == 5) {
                   EXPECT_GE(cut_connections(), 1);
                 }
               } while (wc.status == IBV_WC_SUCCESS);
               EXPECT_EQ(wc.status, IBV_WC_RETRY_EXC_ERR);
               for (; done < posted; ++done)
                 expect_completion(link.cq.get(), done, IBV_WC_WR_FLUSH_ERR);
               link.wire.meet();
             },
             [](Post& p) {
               Link link(p, link_spec());
               link.wire.meet();
             }});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
  EXPECT_EQ(crew.wait(1).exit_code, 0);
}

TEST(SoftTcp, Two_hundred_strangers_are_dropped_and_keep_nobody_out) {
  run_pair([](Post& p) {
    const LinkSpec spec = link_spec();
    Link link(p, spec);
    const Address own = link.hca.address_of(link.qp.get());
    std::vector<Fd> strangers;
    const auto let_in = [&] {
      return strangers.emplace_back(call(own.gid, slot_of(own.qpn))).get();
    };
    // Half of them before the first request, so that peers call among them.
    for (int i = 0; i < 100; ++i) let_in();  // who say nothing
    expect_talk(link, p.side, 10);
    const size_t first_loud = strangers.size();
    for (int i = 0; i < 100; ++i) {
      const int fd = let_in();
      if (i % 4 == 0) {
        EXPECT_GT(::send(fd, "GET / HTTP/1.1\r\n\r\n", 18, MSG_NOSIGNAL), 0);
      }
      if (i % 4 == 1) say(fd, tcp::Hello{.magic = 7, .slot = 9, .to_slot = slot_of(own.qpn)});
      if (i % 4 == 2) say(fd, tcp::Hello{.version = 99, .slot = 9, .to_slot = slot_of(own.qpn)});
      if (i % 4 == 3) say(fd, tcp::Hello{.slot = 9, .to_slot = slot_of(own.qpn) ^ 1});
    }
    for (size_t i = first_loud; i < strangers.size(); ++i)
      EXPECT_TRUE(is_closed_by_peer(strangers[i].get())) << i;
    expect_talk(link, p.side, 20);
    // Of the silent ones no more than some are kept at all.
    EXPECT_TRUE(is_closed_by_peer(strangers[0].get()));
  });
}

TEST(SoftTcp, Who_greets_well_and_then_talks_nonsense_is_dropped) {
  run_pair([](Post& p) {
    Link link(p, link_spec());
    const Address own = link.hca.address_of(link.qp.get());
    const uint32_t slot = slot_of(own.qpn);
    const tcp::Life nobody{.qpn = own.qpn, .generation = 0x12345678};
    const auto greet = [&] {
      Fd fd = call(own.gid, slot);
      say(fd.get(), tcp::Hello{.slot = 9, .to_slot = slot});
      return fd;
    };
    {
      // What an initiator may say, of a queue pair that is not its own: heard, and void.
      const Fd fd = greet();
      say(fd.get(), tcp::Watch{.qpn = own.qpn});
      say(fd.get(), tcp::Watch{.qpn = own.qpn ^ 1u << 14});
      say(fd.get(), tcp::Bind{.source = {9u << 14, 1}, .target = nobody});
      say(fd.get(), tcp::Want{.target = nobody, .number = 1000});
      say(fd.get(), tcp::Fault{.target = nobody});
      say(fd.get(), tcp::Request{.target = nobody, .work = tcp::Work::read});
      say(fd.get(), tcp::Request{.target = {0xffffff, 1}, .work = tcp::Work::read});
      expect_talk(link, p.side, 10);
      // Then what only a target says.
      say(fd.get(), tcp::Answer{});
      EXPECT_TRUE(is_closed_by_peer(fd.get()));
    }
    const Fd no_payload = greet();  // though it says that there is some
    say(no_payload.get(), tcp::Request{.total = 100, .bytes = 100});
    EXPECT_TRUE(is_closed_by_peer(no_payload.get()));
    // Parts of no request: answers to the first two would hold what nobody asked for.
    const tcp::Request unsound[] = {
        {.bytes = 100, .work = tcp::Work::read},
        {.offset = 1, .total = 100, .bytes = 100, .work = tcp::Work::read},
        {.offset = ~uint64_t{0}, .total = 100, .bytes = 1, .work = tcp::Work::read},
        {.work = tcp::Work{0}},
        {.work = tcp::Work{6}},
        {.work = tcp::Work::send},  // which uses up no receive
        {.work = tcp::Work::read, .flags = tcp::kTakesReceive}};
    for (const tcp::Request& request : unsound) {
      const Fd fd = greet();
      say(fd.get(), request);
      EXPECT_TRUE(is_closed_by_peer(fd.get())) << &request - unsound;
    }
    const Fd twice = greet();
    say(twice.get(), tcp::Hello{.slot = 9, .to_slot = slot});
    EXPECT_TRUE(is_closed_by_peer(twice.get()));
    const Fd payload = greet();  // where none belongs
    const tcp::Header header{tcp::Kind::watch, sizeof(tcp::Watch), 8};
    const char bytes[16] = {};
    EXPECT_GT(::send(payload.get(), &header, sizeof header, MSG_NOSIGNAL), 0);
    EXPECT_GT(::send(payload.get(), bytes, sizeof bytes, MSG_NOSIGNAL), 0);
    EXPECT_TRUE(is_closed_by_peer(payload.get()));
    expect_talk(link, p.side, 20);
  });
}

// A queue pair whose peer is what this test plays, in a slot far from ours.
struct Lonely {
  explicit Lonely(const ConnectSpec& connect = kImpatient) {
    peer = peer_of(qp.get());
    listener = listen_as(peer.gid, slot_of(peer.qpn));
    hca.connect(qp.get(), peer, connect);
  }
  Address peer_of(ibv_qp* one) const {
    Address theirs = hca.address_of(one);
    theirs.qpn ^= 1023u << 14;
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
  Address peer{};
  Fd listener;
};

// The next request that comes; none within a second, or no more.
std::optional<tcp::Request> next_request(int fd) {
  while (true) {
    tcp::Header header{};
    char body[128];
    pollfd p{fd, POLLIN, 0};
    if (::poll(&p, 1, 1000) != 1 ||
        ::recv(fd, &header, sizeof header, MSG_WAITALL) != sizeof header ||
        ::recv(fd, body, header.body_bytes, MSG_WAITALL) != header.body_bytes)
      return std::nullopt;
    if (header.kind != tcp::Kind::request) continue;
    tcp::Request request;
    std::memcpy(&request, body, sizeof request);
    return request;
  }
}

// Plays the target of one queue pair, with so many receives.
void say_target(const Lonely& end, int fd, ibv_qp* qp, uint64_t receives) {
  tcp::Target target{.qpn = end.peer_of(qp).qpn,
                     .remote_qpn = qp->qp_num,
                     .state = 1 << 8 | IBV_QPS_RTS,
                     .max_reads = 16,
                     .rq_psn = end.hca.address_of(qp).psn,
                     .path_mtu = IBV_MTU_4096,
                     .rq_tail = receives};
  std::memcpy(target.gid.data(), end.peer.gid.raw, sizeof end.peer.gid.raw);
  say(fd, target);
}

// Plays a target up to the first request, which it gives.
tcp::Request serve_up_to_request(const Lonely& end, int fd) {
  say(fd, tcp::Hello{.slot = slot_of(end.peer.qpn), .to_slot = end.own_slot()});
  say_target(end, fd, end.qp.get(), 10);
  const auto request = next_request(fd);
  EXPECT_TRUE(request.has_value()) << "no request came";
  return request.value_or(tcp::Request{});
}

void run_alone(const Body& body) {
  Crew crew({body});
  EXPECT_EQ(crew.wait(0).exit_code, 0);
}

TEST(SoftTcp, A_peer_that_takes_the_call_and_says_nothing_is_given_up) {
  run_alone([](Post&) {
    Lonely end;
    ASSERT_EQ(post(end.qp.get(), {.id = 1}), 0);
    const Fd connection = end.accept();
    end.expect_given_up();
  });
}

TEST(SoftTcp, Strangers_do_not_end_a_call_of_ours_that_is_answered_late) {
  run_alone([](Post&) {
    Lonely end({.ack_timeout = 0});
    ASSERT_EQ(post(end.qp.get(), {.id = 1}), 0);
    const Fd connection = end.accept();
    std::vector<Fd> strangers;
    for (int i = 0; i < 100; ++i) strangers.push_back(call(end.peer.gid, end.own_slot()));
    EXPECT_TRUE(is_closed_by_peer(strangers[0].get())) << "there are not too many";
    serve_up_to_request(end, connection.get());
  });
}

TEST(SoftTcp, A_peer_that_greets_with_nonsense_is_given_up) {
  run_alone([](Post&) {
    Lonely end;
    ASSERT_EQ(post(end.qp.get(), {.id = 1}), 0);
    const Fd connection = end.accept();
    EXPECT_GT(::send(connection.get(), "SSH-2.0-OpenSSH_9.2p1\r\n", 23, MSG_NOSIGNAL), 0);
    end.expect_given_up();
  });
}

TEST(SoftTcp, A_peer_of_another_version_is_given_up) {
  run_alone([](Post&) {
    Lonely end;
    ASSERT_EQ(post(end.qp.get(), {.id = 1}), 0);
    const Fd connection = end.accept();
    say(connection.get(),
        tcp::Hello{.version = 2, .slot = slot_of(end.peer.qpn), .to_slot = end.own_slot()});
    end.expect_given_up();
  });
}

// The loopback of a network of our own; down, nobody there answers, and connections hear nothing.
bool set_loopback(bool is_up) {
  return std::system(is_up ? "ip link set lo up" : "ip link set lo down") == 0;
}

TEST(SoftTcp, A_host_that_falls_silent_is_given_up_by_those_too_whose_requests_had_no_room) {
  if (::geteuid() != 0) GTEST_SKIP() << "a network of its own wants root";
  run_alone([](Post&) {
    ASSERT_EQ(::unshare(CLONE_NEWNET), 0);
    ASSERT_TRUE(set_loopback(true));
    Lonely end;  // sends a message for which the target has no receive
    ASSERT_EQ(post(end.qp.get(), {.id = 0}), 0);
    const Fd connection = end.accept();
    say(connection.get(), tcp::Hello{.slot = slot_of(end.peer.qpn), .to_slot = end.own_slot()});
    say_target(end, connection.get(), end.qp.get(), 0);
    // More than a connection holds whose other end reads nothing.
    constexpr uint64_t kWriters = 64;
    const auto buffer = end.hca.make_buffer(tcp::kMaxPayload);
    std::vector<Owned<ibv_qp>> writers;
    for (uint64_t i = 1; i <= kWriters; ++i) {
      ibv_qp* qp = writers.emplace_back(end.hca.make_qp(end.cq.get())).get();
      end.hca.connect(qp, end.peer_of(qp), kImpatient);
      say_target(end, connection.get(), qp, 0);
      ASSERT_EQ(post(qp, {.opcode = IBV_WR_RDMA_WRITE,
                          .id = i,
                          .pieces = {{buffer.get(), 0, tcp::kMaxPayload}}}),
                0);
    }
    ASSERT_TRUE(is_empty(end.cq.get()));
    ASSERT_TRUE(set_loopback(false));
    // Expect: each ends, in any order.
    for (uint64_t i = 0; i <= kWriters; ++i)
      ASSERT_EQ(wait_completion(end.cq.get()).status, IBV_WC_RETRY_EXC_ERR) << i << " have ended";
  });
}

TEST(SoftTcp, A_target_that_refuses_again_and_again_is_given_up) {
  run_alone([](Post&) {
    Lonely end;
    ASSERT_EQ(post(end.qp.get(), {.id = 1}), 0);
    const Fd connection = end.accept();
    std::optional<tcp::Request> request = serve_up_to_request(end, connection.get());
    int tries = 0;
    for (; request && tries < 100'000; ++tries) {
      say(connection.get(),
          tcp::Answer{.source = request->source, .number = request->number, .code = tcp::kNotNow});
      request = next_request(connection.get());
    }
    EXPECT_GT(tries, 1) << "it does not try again";
    end.expect_given_up();
  });
}

TEST(SoftTcp, An_answer_that_does_not_fit_its_request_is_a_bad_response) {
  run_alone([](Post&) {
    Lonely end;
    ASSERT_EQ(post(end.qp.get(), {.id = 1}), 0);
    const Fd connection = end.accept();
    const tcp::Request request = serve_up_to_request(end, connection.get());
    const auto answer = [&](uint64_t number, uint32_t generation, uint32_t payload) {
      const tcp::Header header{tcp::Kind::answer, sizeof(tcp::Answer), payload};
      const tcp::Answer body{.source = {request.source.qpn, generation}, .number = number};
      const char bytes[8] = {};
      EXPECT_GT(::send(connection.get(), &header, sizeof header, MSG_NOSIGNAL), 0);
      EXPECT_GT(::send(connection.get(), &body, sizeof body, MSG_NOSIGNAL), 0);
      EXPECT_GE(::send(connection.get(), bytes, payload, MSG_NOSIGNAL), 0);
    };
    answer(request.number - 1, request.source.generation, 0);  // to one before
    answer(request.number, request.source.generation + 1, 0);  // to another life
    EXPECT_TRUE(is_empty(end.cq.get()));
    answer(request.number, request.source.generation, 8);  // with bytes that nobody wanted
    expect_completion(end.cq.get(), 1, IBV_WC_BAD_RESP_ERR);
  });
}

TEST(SoftTcp, A_queue_pair_whose_port_is_taken_says_so_when_it_connects) {
  run_alone([](Post&) {
    Hca hca;
    const auto cq = hca.make_cq();
    const auto qp = hca.make_qp(cq.get());
    Address peer = hca.address_of(qp.get());
    const Fd taken = listen_as(peer.gid, slot_of(peer.qpn));
    peer.qpn ^= 1023u << 14;
    ASSERT_EQ(to_init(qp.get(), kAllAccess), 0);
    testing::internal::CaptureStderr();
    EXPECT_EQ(to_rtr(qp.get(), peer, {}), EADDRINUSE);
    EXPECT_NE(testing::internal::GetCapturedStderr().find("NORIA_SOFT_PORT_BASE"),
              std::string::npos);
  });
}

TEST(SoftTcp, A_path_to_another_host_is_taken_and_given_up_where_nobody_answers) {
  run_alone([](Post&) {
    setenv("NORIA_SOFT_COPY", "auto", 1);
    Hca hca;
    const auto cq = hca.make_cq();
    const auto qp = hca.make_qp(cq.get());
    Address peer = hca.address_of(qp.get());
    peer.gid.raw[12] = 127;  // of this host, and not its device's: nothing leaves it
    peer.gid.raw[13] = 9;
    hca.connect(qp.get(), peer, kImpatient);
    ASSERT_EQ(post(qp.get(), {.id = 1}), 0);
    expect_completion(cq.get(), 1, IBV_WC_RETRY_EXC_ERR);
  });
}

}  // namespace
}  // namespace noria::test
