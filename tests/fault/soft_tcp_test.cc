// The TCP copy path against cut connections, strangers, and peers that say nothing or nonsense.
#include <arpa/inet.h>
#include <poll.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstddef>
#include <cstdlib>
#include <optional>
#include <string>
#include <thread>

#include "tests/support/tcp_calls.hpp"

namespace noria::test {
namespace {

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
                     .max_message = 1 << 30,
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

// Memory that is registered, and then given back to the system in part or as a whole.
class Fleeting {
 public:
  Fleeting(const Hca& hca, size_t bytes, size_t kept)
      : bytes_(bytes),
        base_(static_cast<uint8_t*>(
            ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0))),
        mr_(verbs().reg_mr(hca.pd(), base_, bytes, kAllAccess)) {
    EXPECT_NE(mr_, nullptr);
    if (kept < bytes) {
      EXPECT_EQ(::munmap(base_ + kept, bytes - kept), 0);
    }
  }

  Region region() const { return {reinterpret_cast<uintptr_t>(base_), mr_->rkey}; }
  int post(ibv_qp* qp, ibv_wr_opcode opcode, Region remote) const {
    ibv_sge piece{reinterpret_cast<uintptr_t>(base_), static_cast<uint32_t>(bytes_), mr_->lkey};
    ibv_send_wr wr{};
    wr.wr_id = 1;
    wr.sg_list = &piece;
    wr.num_sge = 1;
    wr.opcode = opcode;
    wr.send_flags = IBV_SEND_SIGNALED;
    wr.wr.rdma.remote_addr = remote.address;
    wr.wr.rdma.rkey = remote.rkey;
    ibv_send_wr* bad = nullptr;
    return ibv_post_send(qp, &wr, &bad);
  }

 private:
  const size_t bytes_;
  uint8_t* const base_;
  Owned<ibv_mr> mr_;
};

TEST(SoftTcp, Memory_that_is_mapped_no_more_ends_its_queue_pair_and_no_other) {
  run_pair([](Post& p) {
    Link link(p, link_spec()), other(p, link_spec());
    constexpr size_t kBytes = 192 << 10;
    expect_talk(other, p.side, 10);
    for (const size_t kept : {size_t{0}, kBytes / 3}) {
      const Fleeting memory(link.hca, kBytes, kept);
      const Region theirs = link.wire.exchange(memory.region());
      for (const ibv_wr_opcode opcode : {IBV_WR_RDMA_WRITE, IBV_WR_RDMA_READ}) {
        if (p.side == 0) {
          // Expect: ours, as where a key is bad.
          ASSERT_EQ(memory.post(link.qp.get(), opcode, link.remote), 0);
          expect_completion(link.cq.get(), 1, IBV_WC_LOC_PROT_ERR);
        }
        expect_talk(other, p.side, 20);
        link.reconnect();
        if (p.side == 0) {
          // Expect: the other side's.
          SendSpec spec = link.write(1, kBytes, theirs);
          spec.opcode = opcode;
          ASSERT_EQ(post(link.qp.get(), spec), 0);
          expect_completion(link.cq.get(), 1, IBV_WC_REM_ACCESS_ERR);
        }
        expect_talk(other, p.side, 30);
        link.reconnect();
      }
    }
  });
}

// Requests end well or not, as they met the page or its absence.
TEST(SoftTcp, Memory_that_comes_and_goes_while_it_is_sent_kills_nobody) {
  run_pair([](Post& p) {
    Link link(p, link_spec());
    constexpr size_t kBytes = 1 << 20;
    const Fleeting memory(link.hca, kBytes, kBytes);
    std::atomic<bool> is_over{false};
    std::thread thief([&] {
      auto* const half = reinterpret_cast<void*>(memory.region().address + kBytes / 2);
      while (!is_over)
        for (const int access : {PROT_NONE, PROT_READ | PROT_WRITE})
          EXPECT_EQ(::mprotect(half, kBytes / 2, access), 0);
    });
    for (int round = 0; round < 50; ++round) {
      constexpr int kWrites = 4;
      if (p.side == 0) {
        for (int i = 0; i < kWrites; ++i)
          ASSERT_EQ(memory.post(link.qp.get(), IBV_WR_RDMA_WRITE, link.remote), 0);
        for (int i = 0; i < kWrites; ++i) wait_completion(link.cq.get());
      }
      link.wire.meet();
      link.reconnect();
    }
    is_over = true;
    thief.join();
  });
}

TEST(SoftTcp, Memory_that_is_given_back_before_a_read_is_answered_gets_nothing) {
  run_alone([](Post&) {
    Lonely end;
    const Fleeting memory(end.hca, 4096, 4096);
    ASSERT_EQ(memory.post(end.qp.get(), IBV_WR_RDMA_READ, memory.region()), 0);
    const Fd connection = end.accept();
    std::optional<tcp::Request> request = serve_up_to_request(end, connection.get());
    ASSERT_EQ(::munmap(reinterpret_cast<void*>(memory.region().address), 4096), 0);
    // In as many parts as it is asked for.
    for (bool is_last = false; request && !is_last; request = next_request(connection.get())) {
      is_last = (request->flags & tcp::kIsLast) != 0;
      const struct {
        tcp::Header header;
        tcp::Answer body;
        char bytes[4096];
      } answer{{tcp::Kind::answer, sizeof(tcp::Answer), request->bytes},
               {.source = request->source, .number = request->number},
               {}};
      const size_t length = offsetof(decltype(answer), bytes) + request->bytes;
      ASSERT_EQ(::send(connection.get(), &answer, length, MSG_NOSIGNAL),
                static_cast<ssize_t>(length));
    }
    expect_completion(end.cq.get(), 1, IBV_WC_LOC_PROT_ERR);
  });
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
