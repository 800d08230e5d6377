// Completion channels: a sleeper is woken, once, and never too late.

#include <fcntl.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>

#include "base/clock.hpp"
#include "tests/support/verbs_link.hpp"

namespace noria::test {
namespace {

constexpr LinkSpec kSleepy{.bytes = 4 << 20, .sleeps = true};

TEST(VerbsChannel, A_sleeper_is_woken_by_what_arrives) {
  run_pair(
      [](Post& p) {
        Link link(p, kSleepy);
        for (uint64_t i = 0; i < 100; ++i) {
          link.wire.meet();
          ASSERT_EQ(post(link.qp.get(), {.id = i, .pieces = {{link.buffer.get(), 0, 100}}}), 0);
          expect_completion(link.cq.get(), i);
        }
        link.wire.meet();
      },
      [](Post& p) {
        Link link(p, kSleepy);
        for (uint64_t i = 0; i < 100; ++i) {
          ASSERT_EQ(post_recv(link.qp.get(), i, {{link.buffer.get(), 0, 100}}), 0);
          ASSERT_EQ(ibv_req_notify_cq(link.cq.get(), 0), 0);
          EXPECT_FALSE(link.has_event(0));
          link.wire.meet();
          ASSERT_NO_FATAL_FAILURE(link.take_event());
          expect_completion(link.cq.get(), i);
        }
        link.wire.meet();
      });
}

TEST(VerbsChannel, A_sleeper_is_woken_by_its_own_requests_too) {
  run_pair([](Post& p) {
    Link link(p, kSleepy);
    for (uint64_t i = 0; i < 50; ++i) {
      // Armed before the post, and a size that does not finish inside it.
      ASSERT_EQ(ibv_req_notify_cq(link.cq.get(), 0), 0);
      ASSERT_EQ(
          post(link.qp.get(), {.opcode = i % 2 == 0 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ,
                               .id = i,
                               .pieces = {{link.buffer.get(), 0, i % 5 == 0 ? 2u << 20 : 64u}},
                               .remote = {link.remote.address + (2 << 20), link.remote.rkey}}),
          0);
      ASSERT_NO_FATAL_FAILURE(link.take_event());
      expect_completion(link.cq.get(), i);
    }
    link.wire.meet();
  });
}

TEST(VerbsChannel, No_event_is_lost_or_spurious_between_arm_and_poll) {
  run_pair([](Post& p) {
    constexpr uint64_t kMessages = 3000;
    constexpr uint64_t kWindow = 8;
    Link link(p, kSleepy);
    for (uint64_t i = 0; i < kWindow; ++i) ASSERT_EQ(post_recv(link.qp.get(), i, {}), 0);
    link.wire.meet();
    uint64_t sent = 0, done = 0, received = 0;
    while (done < kMessages || received < kMessages) {
      // In step with the peer, so that both go to sleep all the time.
      while (sent < kMessages && sent < received + 1) {
        ASSERT_EQ(post(link.qp.get(), {.opcode = IBV_WR_SEND_WITH_IMM, .id = sent, .imm = 1}), 0);
        ++sent;
      }
      const ibv_wc wc = link.sleep_for_completion();
      ASSERT_EQ(wc.status, IBV_WC_SUCCESS);
      if (wc.opcode != IBV_WC_RECV) {
        ASSERT_EQ(wc.wr_id, done++);
        continue;
      }
      ASSERT_EQ(wc.wr_id, received++);
      ASSERT_EQ(post_recv(link.qp.get(), received + kWindow - 1, {}), 0);
    }
    link.wire.meet();
  });
}

TEST(VerbsChannel, An_arm_gives_one_event) {
  run_pair(
      [](Post& p) {
        Link link(p, kSleepy);
        link.wire.meet();
        for (uint64_t i = 0; i < 10; ++i) {
          ASSERT_EQ(post(link.qp.get(), {.id = i}), 0);
          expect_completion(link.cq.get(), i);
        }
        link.wire.meet();
        link.wire.meet();
      },
      [](Post& p) {
        Link link(p, kSleepy);
        for (uint64_t i = 0; i < 10; ++i) ASSERT_EQ(post_recv(link.qp.get(), i, {}), 0);
        ASSERT_EQ(ibv_req_notify_cq(link.cq.get(), 0), 0);
        link.wire.meet();
        link.wire.meet();  // all ten have been acknowledged
        for (uint64_t i = 0; i < 10; ++i) expect_completion(link.cq.get(), i);
        ASSERT_NO_FATAL_FAILURE(link.take_event());
        // Expect: ten completions, one event.
        EXPECT_FALSE(link.has_event(20));
        link.wire.meet();
      });
}

TEST(VerbsChannel, An_unarmed_queue_raises_no_event) {
  run_pair([](Post& p) {
    Link link(p, kSleepy);
    const bool sends = p.side == 0;
    ASSERT_EQ(sends ? 0 : post_recv(link.qp.get(), 1, {}), 0);
    link.wire.meet();
    ASSERT_EQ(sends ? post(link.qp.get(), {.id = 1}) : 0, 0);
    expect_completion(link.cq.get(), 1);
    EXPECT_FALSE(link.has_event(20));
    link.wire.meet();
  });
}

size_t open_descriptors() {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return static_cast<size_t>(std::distance(begin(entries), end(entries)));
}

// The kernel's number for an eventfd, the same in each process that has it; -1 for what is none.
int64_t event_id(const std::filesystem::path& descriptor) {
  std::ifstream info("/proc/self/fdinfo" / descriptor);
  int64_t id = -1;
  for (std::string word; info >> word;)
    if (word == "eventfd-id:" && info >> id) return id;
  return -1;
}
bool passes_descriptors() {
  const char* const way = std::getenv("NORIA_SOFT_COPY");
  return way == nullptr || std::string(way) != "tcp";
}
bool holds_event(int64_t id) {
  const std::filesystem::directory_iterator entries("/proc/self/fd");
  return std::any_of(begin(entries), end(entries),
                     [id](const auto& entry) { return event_id(entry.path().filename()) == id; });
}

TEST(VerbsChannel, A_destroyed_one_leaves_no_descriptor_with_the_peer) {
  constexpr size_t kChannels = 200;
  run_pair(
      [](Post& p) {
        Link link(p, kSleepy);
        link.wire.meet();
        ASSERT_EQ(post(link.qp.get(), {.id = 1}), 0);
        expect_completion(link.cq.get(), 1);
        link.wire.meet();
        link.wire.meet();
        for (size_t i = 0; i < kChannels; ++i) ASSERT_NE(link.hca.make_channel().get(), nullptr);
        // What is said of this one comes behind all that was said of those.
        const auto last = link.hca.make_channel();
        link.wire.send(passes_descriptors() ? event_id(std::to_string(last->fd)) : int64_t{-1});
        link.wire.meet();
      },
      [](Post& p) {
        Link link(p, kSleepy);
        ASSERT_EQ(post_recv(link.qp.get(), 1, {}), 0);
        link.wire.meet();
        link.wire.meet();
        expect_completion(link.cq.get(), 1);
        const size_t before = open_descriptors();
        link.wire.meet();
        const auto last = link.wire.recv<int64_t>();
        const auto is_over = [&] {
          return (last < 0 || holds_event(last)) && open_descriptors() <= before + kChannels / 10;
        };
        // Expect: none of those stays, once the last is known and what it took the place of is
        // closed. What the peer said before may have come late.
        wait_until(is_over, "the peer's channels are known, and closed");
        link.wire.meet();
      });
}

TEST(VerbsChannel, Solicited_only_sleeps_through_what_is_not_solicited) {
  run_pair(
      [](Post& p) {
        Link link(p, kSleepy);
        link.wire.meet();
        ASSERT_EQ(post(link.qp.get(), {.id = 1}), 0);
        expect_completion(link.cq.get(), 1);
        link.wire.meet();
        link.wire.meet();
        ASSERT_EQ(post(link.qp.get(), {.id = 2, .flags = IBV_SEND_SIGNALED | IBV_SEND_SOLICITED}),
                  0);
        expect_completion(link.cq.get(), 2);
        link.wire.meet();
      },
      [](Post& p) {
        Link link(p, kSleepy);
        ASSERT_EQ(post_recv(link.qp.get(), 1, {}), 0);
        ASSERT_EQ(post_recv(link.qp.get(), 2, {}), 0);
        ASSERT_EQ(ibv_req_notify_cq(link.cq.get(), 1), 0);
        link.wire.meet();
        link.wire.meet();
        EXPECT_FALSE(link.has_event(20));
        link.wire.meet();
        ASSERT_NO_FATAL_FAILURE(link.take_event());
        expect_completion(link.cq.get(), 1);
        expect_completion(link.cq.get(), 2);
        link.wire.meet();
      });
}

TEST(VerbsChannel, A_non_blocking_channel_answers_at_once) {
  run_pair([](Post& p) {
    Link link(p, kSleepy);
    const int flags = fcntl(link.channel->fd, F_GETFL);
    ASSERT_EQ(fcntl(link.channel->fd, F_SETFL, flags | O_NONBLOCK), 0);
    ibv_cq* which = nullptr;
    void* context = nullptr;
    EXPECT_EQ(verbs().get_cq_event(link.channel.get(), &which, &context), -1);
    EXPECT_EQ(errno, EAGAIN);
    link.wire.meet();
  });
}

}  // namespace
}  // namespace noria::test
