// Peers that die, stop, fork or live under restrictions.

#include <dirent.h>
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <functional>
#include <set>
#include <sstream>
#include <string>

#include "base/units.hpp"
#include "tests/support/verbs_link.hpp"

namespace noria::test {
namespace {

// 4.096 us * 2^14 = 67 ms, eight times: half a second until a dead peer is given up.
LinkSpec link_spec(Memory memory = Memory::plain) {
  return {.bytes = 8 << 20, .memory = memory, .connect = {.ack_timeout = 14, .retry_count = 7}};
}

void expect_well(Crew& crew, size_t side) {
  const Ending ending = crew.wait(side);
  EXPECT_EQ(ending.exit_code, 0) << "side " << side << " signal " << ending.signal
                                 << (ending.timed_out ? " timed out" : "");
}

void pause_ms(long ms) {
  const timespec pause{.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1'000'000};
  nanosleep(&pause, nullptr);
}

[[noreturn]] void stay_until_killed() {
  for (;;) ::pause();
}

// Posts requests one by one until one names the peer's death; the next one is flushed. A device may
// learn of a death a moment late, so that the first ones may still succeed.
void expect_death_notice(const Link& link, const SendSpec& request) {
  const Nanoseconds deadline = now_ns() + 10_s;
  ibv_wc wc{};
  do {
    ASSERT_EQ(post(link.qp.get(), request), 0);
    wc = wait_completion(link.cq.get(), 10_s);
    ASSERT_LT(now_ns(), deadline) << "the dead peer still answers";
  } while (wc.status == IBV_WC_SUCCESS);
  EXPECT_EQ(wc.status, IBV_WC_RETRY_EXC_ERR);
  EXPECT_EQ(wc.wr_id, request.id);
  ASSERT_EQ(post(link.qp.get(), request), 0);
  expect_completion(link.cq.get(), request.id, IBV_WC_WR_FLUSH_ERR);
}

NORIA_TEST_BOTH_MEMORIES(SoftDeath);

// Kills side 1 while both are idle, and lets side 0 post what `make` gives.
void expect_told_of_death(Memory memory, SendSpec (*make)(const Link&)) {
  Crew crew({[=](Post& p) {
               Link link(p, link_spec(memory));
               p.parent.meet();
               p.parent.meet();  // killed and reaped
               expect_death_notice(link, make(link));
             },
             [=](Post& p) {
               Link link(p, link_spec(memory));
               p.parent.meet();
               stay_until_killed();
             }});
  crew.wire(0).meet();
  crew.wire(1).meet();
  crew.kill(1, SIGKILL);
  EXPECT_EQ(crew.wait(1).signal, SIGKILL);
  crew.wire(0).meet();
  expect_well(crew, 0);
}

TEST_P(SoftDeath, A_peer_killed_while_idle_is_noticed_by_the_next_requests) {
  expect_told_of_death(GetParam(), [](const Link& l) { return l.write(1, 64, l.remote); });
}

TEST_P(SoftDeath, A_peer_killed_under_load_is_noticed_by_everything_queued) {
  for (const long after_ms : {1, 7, 40}) {
    Crew crew({[](Post& p) {
                 Link link(p, link_spec(GetParam()));
                 p.parent.meet();
                 // A full queue at all times until the first failure.
                 uint64_t posted = 0, done = 0;
                 ibv_wc wc{};
                 const Nanoseconds deadline = now_ns() + 20_s;
                 do {
                   for (; posted - done < 16; ++posted)
                     ASSERT_EQ(post(link.qp.get(), link.write(posted, 1 << 20, link.remote)), 0);
                   wc = wait_completion(link.cq.get(), 10_s);
                   ASSERT_EQ(wc.wr_id, done++);
                   ASSERT_LT(now_ns(), deadline) << "the dead peer still takes writes";
                 } while (wc.status == IBV_WC_SUCCESS);
                 EXPECT_EQ(wc.status, IBV_WC_RETRY_EXC_ERR);
                 for (; done < posted; ++done)
                   expect_completion(link.cq.get(), done, IBV_WC_WR_FLUSH_ERR);
               },
               [](Post& p) {
                 Link link(p, link_spec(GetParam()));
                 p.parent.meet();
                 for (;;) is_empty(link.cq.get());
               }});
    crew.wire(0).meet();
    crew.wire(1).meet();
    pause_ms(after_ms);
    crew.kill(1, SIGKILL);
    EXPECT_EQ(crew.wait(1).signal, SIGKILL);
    expect_well(crew, 0);
  }
}

TEST_P(SoftDeath, A_reader_of_a_killed_peer_is_told) {
  expect_told_of_death(GetParam(), [](const Link& l) { return l.read(1, 4 << 20, l.remote); });
}

TEST_P(SoftDeath, A_sleeper_learns_of_a_death_by_its_completion_channel) {
  Crew crew({[](Post& p) {
               Hca hca;
               const auto channel = hca.make_channel();
               const auto cq = hca.make_cq(64, channel.get());
               const auto qp = hca.make_qp(cq.get());
               hca.connect(qp.get(), p.peer);
               p.parent.meet();
               p.parent.meet();
               ASSERT_EQ(ibv_req_notify_cq(cq.get(), 0), 0);
               ASSERT_EQ(post(qp.get(), {.id = 1}), 0);  // nobody will ever receive it
               ibv_cq* which = nullptr;
               void* context = nullptr;
               alarm(15);
               ASSERT_EQ(verbs().get_cq_event(channel.get(), &which, &context), 0);
               alarm(0);
               verbs().ack_cq_events(which, 1);
               expect_completion(cq.get(), 1, IBV_WC_RETRY_EXC_ERR);
             },
             [](Post& p) {
               Hca hca;
               const auto cq = hca.make_cq();
               const auto qp = hca.make_qp(cq.get());
               hca.connect(qp.get(), p.peer);
               p.parent.meet();
               stay_until_killed();
             }});
  crew.wire(0).meet();
  crew.wire(1).meet();
  crew.kill(1, SIGKILL);
  EXPECT_EQ(crew.wait(1).signal, SIGKILL);
  crew.wire(0).meet();
  expect_well(crew, 0);
}

TEST(SoftPeers, A_peer_that_never_was_is_an_error_of_the_first_request) {
  Crew crew({[](Post&) {
    Hca hca;
    const auto cq = hca.make_cq();
    const auto qp = hca.make_qp(cq.get());
    Address nobody = hca.address_of(qp.get());
    nobody.qpn ^= 1023u << 14;  // a slot far from ours
    hca.connect(qp.get(), nobody, {.ack_timeout = 8, .retry_count = 1});
    ASSERT_EQ(post(qp.get(), {.id = 1}), 0);
    expect_completion(cq.get(), 1, IBV_WC_RETRY_EXC_ERR);
  }});
  expect_well(crew, 0);
}

// Waits for ever for a peer that does not answer.
constexpr ConnectSpec kPatient{.ack_timeout = 0};

// Runs `body` in a child whose process takes the slot `slot` of the device: the search for a free
// one starts at the process id.
void run_in_slot(uint32_t slot, const std::function<void()>& body) {
  constexpr uint32_t kSlotsInUse = 1023;
  std::fflush(nullptr);
  for (int i = 0; i < 40000; ++i) {
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      if (1 + static_cast<uint32_t>(getpid()) % kSlotsInUse != slot) _exit(77);
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      body();
      _exit(testing::Test::HasFailure() ? 1 : 0);
    }
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    if (WIFEXITED(status) && WEXITSTATUS(status) == 77) continue;
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
    return;
  }
  ADD_FAILURE() << "no process id came that leads to slot " << slot;
}

TEST(SoftPeers, A_process_that_died_before_it_connected_gives_way_to_the_next_in_its_slot) {
  run_pair(
      [](Post& p) {
        Hca hca;
        const auto cq = hca.make_cq();
        const auto qp = hca.make_qp(cq.get());
        const auto buffer = hca.make_buffer(4096);
        p.peer.send(hca.address_of(qp.get()));
        const auto first = p.peer.recv<Address>();
        hca.connect(qp.get(), first, kPatient);
        ASSERT_EQ(post_recv(qp.get(), 1, {{buffer.get(), 0, 64}}), 0);
        paint(buffer->data() + 64, 64, 1);
        ASSERT_EQ(post(qp.get(), {.id = 2, .pieces = {{buffer.get(), 64, 64}}}), 0);
        // Until the process there is known, and looked at for as long as it takes to be sure.
        for (int i = 0; i < 20; ++i) {
          EXPECT_TRUE(is_empty(cq.get()));
          pause_ms(1);
        }
        p.peer.send(uint8_t{1});
        // Expect: the process that comes after it is talked to, both ways.
        for (int i = 0; i < 2; ++i) EXPECT_EQ(wait_completion(cq.get()).status, IBV_WC_SUCCESS);
        EXPECT_EQ(first_wrong(buffer->data(), 64, 2), 64u);
        p.peer.meet();
      },
      [](Post& p) {
        const auto remote = p.peer.recv<Address>();
        Address mine{};
        int pipe_fds[2];
        ASSERT_EQ(pipe(pipe_fds), 0);
        std::fflush(nullptr);
        const pid_t pid = fork();
        if (pid == 0) {
          Hca hca;
          const auto cq = hca.make_cq();
          const auto qp = hca.make_qp(cq.get());
          const Address address = hca.address_of(qp.get());
          p.peer.send(address);
          p.peer.recv<uint8_t>();
          if (write(pipe_fds[1], &address, sizeof address) != sizeof address) _exit(1);
          kill(getpid(), SIGKILL);
        }
        ASSERT_EQ(read(pipe_fds[0], &mine, sizeof mine), ssize_t{sizeof mine});
        ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
        run_in_slot(mine.qpn >> 14, [&] {
          Hca hca;
          const auto cq = hca.make_cq();
          const auto qp = hca.make_qp(cq.get());
          const auto buffer = hca.make_buffer(4096);
          ASSERT_EQ(qp->qp_num, mine.qpn);
          hca.connect(qp.get(), remote);
          ASSERT_EQ(post_recv(qp.get(), 1, {{buffer.get(), 0, 64}}), 0);
          paint(buffer->data() + 64, 64, 2);
          ASSERT_EQ(post(qp.get(), {.id = 2, .pieces = {{buffer.get(), 64, 64}}}), 0);
          for (int i = 0; i < 2; ++i) EXPECT_EQ(wait_completion(cq.get()).status, IBV_WC_SUCCESS);
          EXPECT_EQ(first_wrong(buffer->data(), 64, 1), 64u);
          p.peer.meet();
        });
      });
}

// Holds up the service thread of its process until it goes: of a process that talks to itself, that
// thread wakes the sleepers, and here is one whose channel is full.
class HeldUp {
 public:
  explicit HeldUp(const Hca& hca) : hca_(hca) {
    hca.connect(a_.get(), hca.address_of(b_.get()));
    hca.connect(b_.get(), hca.address_of(a_.get()));
    EXPECT_EQ(ibv_req_notify_cq(cq_.get(), 0), 0);
    uint64_t full = UINT64_MAX - 1;
    EXPECT_EQ(::write(channel_->fd, &full, sizeof full), ssize_t{sizeof full});
    EXPECT_EQ(post_recv(b_.get(), 1, {}), 0);
    EXPECT_EQ(post(a_.get(), {.id = 2}), 0);
    expect_completion(send_cq_.get(), 2);
  }
  ~HeldUp() {
    uint64_t count = 0;
    EXPECT_EQ(::read(channel_->fd, &count, sizeof count), ssize_t{sizeof count});
  }
  HeldUp(const HeldUp&) = delete;
  HeldUp& operator=(const HeldUp&) = delete;

 private:
  const Hca& hca_;
  Owned<ibv_comp_channel> channel_ = hca_.make_channel();
  Owned<ibv_cq> cq_ = hca_.make_cq(16, channel_.get()), send_cq_ = hca_.make_cq(16);
  Owned<ibv_qp> a_ = hca_.make_qp(send_cq_.get()), b_ = hca_.make_qp(send_cq_.get(), cq_.get());
};

TEST(SoftPeers, A_message_is_not_left_with_a_process_whose_end_was_not_noticed_yet) {
  run_pair(
      [](Post& p) {
        Hca hca;
        const auto cq = hca.make_cq();
        const auto met = hca.make_qp(cq.get()), qp = hca.make_qp(cq.get());
        const auto buffer = hca.make_buffer(4096);
        // A first queue pair, by whose message both processes know each other.
        p.peer.send(hca.address_of(met.get()));
        p.peer.send(hca.address_of(qp.get()));
        hca.connect(met.get(), p.peer.recv<Address>(), kPatient);  // it may be slow to connect
        hca.connect(qp.get(), p.peer.recv<Address>(), {.ack_timeout = 12, .retry_count = 1});
        ASSERT_EQ(post(met.get(), {.id = 1}), 0);
        expect_completion(cq.get(), 1);
        const HeldUp held_up(hca);
        p.peer.meet();
        p.peer.meet();  // it is gone
        // Expect: nobody answers. Its memory is still mapped here, and would take the message.
        ASSERT_EQ(post(qp.get(), {.id = 2, .pieces = {{buffer.get(), 0, 64}}}), 0);
        expect_completion(cq.get(), 2, IBV_WC_RETRY_EXC_ERR);
      },
      [](Post& p) {
        const auto met_remote = p.peer.recv<Address>(), remote = p.peer.recv<Address>();
        std::fflush(nullptr);
        const pid_t pid = fork();
        if (pid == 0) {
          Hca hca;
          const auto cq = hca.make_cq();
          const auto met = hca.make_qp(cq.get()), qp = hca.make_qp(cq.get());
          const auto buffer = hca.make_buffer(4096);
          p.peer.send(hca.address_of(met.get()));
          p.peer.send(hca.address_of(qp.get()));
          hca.connect(met.get(), met_remote);
          hca.connect(qp.get(), remote);
          post_recv(met.get(), 1, {});
          post_recv(qp.get(), 1, {{buffer.get(), 0, 64}});
          expect_completion(cq.get(), 1);
          p.peer.meet();
          kill(getpid(), SIGKILL);
        }
        ASSERT_EQ(waitpid(pid, nullptr, 0), pid);
        p.peer.meet();
      });
}

TEST_P(SoftDeath, A_stopped_peer_is_alive) {
  Crew crew(
      {[](Post& p) {
         Link link(p, link_spec(GetParam()));
         p.parent.meet();
         // Writes and sends all along; the peer stops somewhere among them for far longer
         // than all retries of a dead one take.
         uint64_t done = 0;
         const Nanoseconds end = now_ns() + 3_s;
         while (now_ns() < end || done < 100) {
           ASSERT_EQ(post(link.qp.get(), link.write(done, 200000, link.at(4096))), 0);
           const ibv_wc wc = expect_completion(link.cq.get(), done++);
           ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
         }
         ASSERT_EQ(post(link.qp.get(), {.id = 7, .pieces = {{link.buffer.get(), 0, 4096}}}), 0);
         expect_completion(link.cq.get(), 7);
         link.wire.meet();
       },
       [](Post& p) {
         Link link(p, link_spec(GetParam()));
         ASSERT_EQ(post_recv(link.qp.get(), 8, {{link.buffer.get(), 0, 4096}}), 0);
         p.parent.meet();
         expect_completion(link.cq.get(), 8);
         link.wire.meet();
       }});
  crew.wire(0).meet();
  crew.wire(1).meet();
  pause_ms(100);
  crew.kill(1, SIGSTOP);
  pause_ms(2000);
  crew.kill(1, SIGCONT);
  expect_well(crew, 0);
  expect_well(crew, 1);
}

TEST(SoftPeers, A_forked_child_is_refused_and_harms_nobody) {
  run_pair([](Post& p) {
    Link link(p, link_spec());
    ASSERT_EQ(post_recv(link.qp.get(), 1, {{link.buffer.get(), 0, 64}}), 0);
    link.wire.meet();
    std::fflush(nullptr);
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      // Expect: clear errors, no crash, no hang.
      ibv_wc wc{};
      const bool refused = post(link.qp.get(), link.write(9, 64, link.remote)) != 0 &&
                           post_recv(link.qp.get(), 9, {}) != 0 &&
                           ibv_poll_cq(link.cq.get(), 1, &wc) <= 0 &&
                           verbs().alloc_pd(link.hca.context()) == nullptr &&
                           to_state(link.qp.get(), IBV_QPS_ERR) != 0;
      _exit(refused ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
    link.wire.meet();
    paint(link.buffer->data() + 64, 64, 9);
    ASSERT_EQ(post(link.qp.get(), {.id = 2, .pieces = {{link.buffer.get(), 64, 64}}}), 0);
    for (int i = 0; i < 2; ++i) EXPECT_EQ(wait_completion(link.cq.get()).status, IBV_WC_SUCCESS);
    EXPECT_EQ(first_wrong(link.buffer->data(), 64, 9), 64u);
    link.wire.meet();
  });
}

TEST(SoftPeers, A_forked_child_does_not_share_the_memory_that_peers_map) {
  Crew crew({[](Post&) {
    Hca hca;
    const auto buffer = hca.make_buffer(4096, Memory::mapped);
    std::fflush(nullptr);
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    // Expect: as registered memory of a network card, the child does not have it.
    if (pid == 0) _exit(msync(buffer->data(), 4096, MS_ASYNC) != 0 && errno == ENOMEM ? 0 : 1);
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
    buffer->data()[0] = 1;
  }});
  expect_well(crew, 0);
}

// The inodes of the sockets that a process holds.
std::set<std::string> sockets_of(pid_t pid) {
  std::set<std::string> inodes;
  const std::string folder = "/proc/" + std::to_string(pid) + "/fd";
  DIR* dir = opendir(folder.c_str());
  EXPECT_NE(dir, nullptr);
  while (const dirent* entry = dir != nullptr ? readdir(dir) : nullptr) {
    char target[256];
    const ssize_t n = readlink((folder + "/" + entry->d_name).c_str(), target, sizeof target);
    const std::string text(target, n > 0 ? static_cast<size_t>(n) : 0);
    if (text.starts_with("socket:[")) inodes.insert(text.substr(8, text.size() - 9));
  }
  if (dir != nullptr) closedir(dir);
  return inodes;
}

TEST(SoftPeers, A_killed_process_leaves_nothing_behind) {
  const Body body = [](Post& p) {
    Link link(p, link_spec(Memory::mapped));
    ASSERT_EQ(post(link.qp.get(), link.write(1, 64, link.remote)), 0);
    expect_completion(link.cq.get(), 1);
    p.parent.meet();
    stay_until_killed();
  };
  Crew crew({body, body});
  std::set<std::string> inodes;
  for (size_t side = 0; side < 2; ++side) {
    crew.wire(side).meet();
    inodes.merge(sockets_of(crew.pid(side)));
  }
  EXPECT_FALSE(inodes.empty());
  for (size_t side = 0; side < 2; ++side) {
    crew.kill(side, SIGKILL);
    EXPECT_EQ(crew.wait(side).signal, SIGKILL);
  }
  // The parent's own ends of the wires are not theirs.
  for (const std::string& mine : sockets_of(getpid())) inodes.erase(mine);

  std::ifstream table("/proc/net/unix");
  for (std::string line; std::getline(table, line);) {
    std::istringstream words(line);
    std::string word, inode;
    for (int i = 0; i < 7 && words >> word; ++i) inode = word;
    EXPECT_FALSE(inodes.contains(inode)) << line;
  }
  if (DIR* dir = opendir("/dev/shm")) {
    while (const dirent* entry = readdir(dir))
      EXPECT_EQ(std::string(entry->d_name).find("noria"), std::string::npos) << entry->d_name;
    closedir(dir);
  }
}

TEST(SoftPeers, Two_jobs_at_once_do_not_meet) {
  const auto job = [](uint64_t seed) {
    return [seed](Post& p) {
      Link link(p, link_spec());
      const uint64_t mine = seed * 2 + static_cast<uint64_t>(p.side);
      paint(link.buffer->data(), 1 << 20, mine);
      link.wire.meet();
      for (uint64_t i = 0; i < 50; ++i) {
        ASSERT_EQ(post(link.qp.get(), link.write(i, 1 << 20, link.at(4 << 20))), 0);
        expect_completion(link.cq.get(), i);
      }
      link.wire.meet();
      EXPECT_EQ(first_wrong(link.buffer->data() + (4 << 20), 1 << 20, mine ^ 1), 1u << 20);
      link.wire.meet();
    };
  };
  Crew first({job(1), job(1)}), second({job(2), job(2)});
  for (size_t side = 0; side < 2; ++side) {
    expect_well(first, side);
    expect_well(second, side);
  }
}

TEST(SoftPeers, Eight_processes_talk_to_each_other) {
  // The parent hands every address to every process.
  constexpr size_t kProcesses = 8;
  struct Card {
    Address addresses[kProcesses];
    Region region;
  };
  struct Book {
    Card cards[kProcesses];
  };
  const Body body = [](Post& p) {
    Hca hca;
    const auto cq = hca.make_cq();
    const auto buffer = hca.make_buffer(kProcesses * 8192 * 2, Memory::mapped);
    std::vector<Owned<ibv_qp>> qps;
    Card card{.addresses = {}, .region = {buffer->address(), buffer->rkey()}};
    for (size_t i = 0; i < kProcesses; ++i) {
      qps.push_back(hca.make_qp(cq.get()));
      card.addresses[i] = hca.address_of(qps[i].get());
    }
    p.parent.send(card);
    const auto book = p.parent.recv<Book>();
    const auto me = static_cast<size_t>(p.side);
    for (size_t i = 0; i < kProcesses; ++i) {
      if (i == me) continue;
      hca.connect(qps[i].get(), book.cards[i].addresses[me]);
      ASSERT_EQ(post_recv(qps[i].get(), 100 + i, {}), 0);
    }
    p.parent.meet();
    for (size_t i = 0; i < kProcesses; ++i) {
      if (i == me) continue;
      paint(buffer->data() + i * 8192, 8192, me * kProcesses + i);
      ASSERT_EQ(
          post(qps[i].get(), {.opcode = IBV_WR_RDMA_WRITE_WITH_IMM,
                              .id = i,
                              .pieces = {{buffer.get(), i * 8192, 8192}},
                              .remote = {book.cards[i].region.address + (kProcesses + me) * 8192,
                                         book.cards[i].region.rkey}}),
          0);
    }
    for (size_t i = 0; i < 2 * (kProcesses - 1); ++i)
      ASSERT_EQ(wait_completion(cq.get()).status, IBV_WC_SUCCESS);
    for (size_t i = 0; i < kProcesses; ++i) {
      if (i == me) continue;
      EXPECT_EQ(first_wrong(buffer->data() + (kProcesses + i) * 8192, 8192, i * kProcesses + me),
                8192u);
    }
    p.parent.meet();
  };
  Crew crew(std::vector<Body>(kProcesses, body));
  Book book{};
  for (size_t i = 0; i < kProcesses; ++i) book.cards[i] = crew.wire(i).recv<Card>();
  for (size_t i = 0; i < kProcesses; ++i) crew.wire(i).send(book);
  for (int meeting = 0; meeting < 2; ++meeting) {
    for (size_t i = 0; i < kProcesses; ++i) crew.wire(i).recv<uint8_t>();
    for (size_t i = 0; i < kProcesses; ++i) crew.wire(i).send(uint8_t{1});
  }
  for (size_t i = 0; i < kProcesses; ++i) expect_well(crew, i);
}

// From now on process_vm_readv and process_vm_writev answer EPERM, as in many sandboxes.
void forbid_attach(const char* copy = "auto") {  // what a user who knows of no sandbox has
  setenv("NORIA_SOFT_COPY", copy, 1);
  sock_filter code[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_readv, 1, 0),
      BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_process_vm_writev, 0, 1),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
  };
  const sock_fprog program{.len = std::size(code), .filter = code};
  ASSERT_EQ(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), 0);
  ASSERT_EQ(prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), 0);
}

std::string description(const Hca& hca) {
  char text[256] = {};
  EXPECT_EQ(verbs().noria_describe(hca.context(), text, sizeof text), 0);
  return text;
}

// Writes, reads, sends, in both directions, and compares.
void talk(Post& p) {
  Link link(p, link_spec());
  const auto side = static_cast<uint64_t>(p.side);
  for (uint64_t i = 0; i < 10; ++i) {
    const auto bytes = static_cast<uint32_t>(1 + i * 99991);
    uint8_t* data = link.buffer->data();
    paint(data, bytes, 2 * i + side);
    std::memset(data + (1 << 20), 0, 4 << 20);
    ASSERT_EQ(post_recv(link.qp.get(), 3, {{link.buffer.get(), 3 << 20, 1 << 20}}), 0);
    link.wire.meet();
    ASSERT_EQ(post(link.qp.get(), link.write(1, bytes, link.at(1 << 20))), 0);
    ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_RDMA_READ,
                                   .id = 2,
                                   .pieces = {{link.buffer.get(), 2 << 20, bytes}},
                                   .remote = link.remote}),
              0);
    ASSERT_EQ(post(link.qp.get(), {.id = 4, .pieces = {{link.buffer.get(), 0, bytes}}}), 0);
    for (int k = 0; k < 4; ++k) {
      const ibv_wc wc = wait_completion(link.cq.get());
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS) << wc.wr_id;
    }
    link.wire.meet();
    for (const size_t at : {1_MiB, 2_MiB, 3_MiB})
      ASSERT_EQ(first_wrong(data + at, bytes, 2 * i + (side ^ 1)), bytes) << at;
    link.wire.meet();
  }
}

TEST(SoftPeers, Without_cross_memory_attach_the_bytes_arrive_all_the_same) {
  // Side 0, side 1, both.
  for (const int who : {1, 2, 3}) {
    run_pair([who](Post& p) {
      if ((who >> p.side & 1) != 0) {
        forbid_attach();
        Hca hca;
        EXPECT_NE(description(hca).find("shared memory"), std::string::npos) << description(hca);
      } else if (std::getenv("NORIA_SOFT_COPY") == std::string("tcp")) {
        setenv("NORIA_SOFT_COPY", "auto", 1);  // whether they share memory both must say alike
      }
      talk(p);
    });
  }
}

TEST(SoftPeers, Who_asks_for_attach_where_it_is_forbidden_is_told_so) {
  Crew crew({[](Post&) {
    forbid_attach("cma");
    Hca hca;
    EXPECT_NE(description(hca).find("forbidden"), std::string::npos) << description(hca);
    EXPECT_NE(description(hca).find("NORIA_SOFT_COPY"), std::string::npos) << description(hca);
  }});
  expect_well(crew, 0);
}

TEST(SoftPeers, A_plain_user_needs_no_privilege) {
  run_pair([](Post& p) {
    setenv("NORIA_SOFT_COPY", "auto", 1);
    if (geteuid() == 0) {
      // As after su: no capabilities, and not dumpable, so that attach may well be refused.
      ASSERT_EQ(setgid(65534), 0);
      ASSERT_EQ(setuid(65534), 0);
    }
    talk(p);
  });
}

}  // namespace
}  // namespace noria::test
