// Ranks that a tool forked, when one of them is lost before all have met.
#include "perf/local_ranks.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <thread>

#include "base/clock.hpp"
#include "perf/communicator.hpp"
#include "tests/e2e/tool_runs.hpp"

namespace noria::perf {
namespace {

using Hook = std::function<void(LocalRank&)>;

// Runs three ranks of which `victim` ends by `loss` before it joins.  Expect: the others name it.
void expect_loss_is_named(
    int victim, const Hook& loss, const Hook& before_join = [](LocalRank&) {}) {
  testing::internal::CaptureStderr();
  const Nanoseconds before = now_ns();
  const LocalResult result = run_local_ranks({.tool = "test", .size = 3}, [&](LocalRank& rank) {
    rank.rank() == victim ? loss(rank) : before_join(rank);
    const Communicator comm(rank);
    return Exit::ok;
  });
  const ToolEnd end{.exit_code = static_cast<int>(result.exit),
                    .err = testing::internal::GetCapturedStderr()};
  expect_named_by_all_others(end, "test", 3, static_cast<size_t>(victim));
  EXPECT_LT(now_ns() - before, 10_s);  // the tools' promise, not a measure of speed
}

void die(LocalRank&) { ::raise(SIGKILL); }

TEST(Local_ranks, Name_a_rank_that_was_killed_before_it_asked_for_the_id) {
  for (const int victim : {0, 2}) expect_loss_is_named(victim, die);
}

TEST(Local_ranks, Name_a_rank_that_was_killed_before_it_joined) {
  for (const int victim : {0, 2})
    expect_loss_is_named(victim, [](LocalRank& rank) {
      rank.exchange_id();
      die(rank);
    });
}

// Waits until this process has a connection of TCP: the one to rank 0.
void await_connection() {
  const Nanoseconds deadline = now_ns() + 10_s;
  while (now_ns() < deadline) {
    for (int fd = 3; fd < 256; ++fd) {
      sockaddr_storage peer{};
      socklen_t bytes = sizeof peer;
      if (::getpeername(fd, reinterpret_cast<sockaddr*>(&peer), &bytes) == 0 &&
          peer.ss_family != AF_UNIX)
        return;
    }
    std::this_thread::yield();
  }
}

// Rank 0 gives up and ends while rank 1, held up when it hears of the loss, still waits for the
// library's word: the end of rank 0 must not hide what caused it.
TEST(Local_ranks, Name_a_lost_rank_where_rank_0_ended_next) {
  std::array<int, 2> connected{}, held{};
  ASSERT_EQ(::pipe(connected.data()), 0);
  ASSERT_EQ(::pipe(held.data()), 0);
  const auto hold_at_news = [&](int news) {
    await_connection();
    const pid_t pid = ::getpid();
    EXPECT_EQ(::write(connected[1], "c", 1), 1);
    pollfd loss{.fd = news, .events = POLLIN, .revents = 0};
    ::poll(&loss, 1, -1);
    EXPECT_EQ(::write(held[1], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
    ::raise(SIGSTOP);
  };
  const auto end_and_free_rank_1 = [&](LocalRank& rank) {
    try {
      const Communicator never_complete(rank);
    } catch (const ToolError&) {
      pid_t pid = 0;
      EXPECT_EQ(::read(held[0], &pid, sizeof pid), static_cast<ssize_t>(sizeof pid));
      ::kill(pid, SIGCONT);
      throw;
    }
  };
  const auto die_once_rank_1_is_connected = [&](LocalRank& rank) {
    rank.exchange_id();
    char byte = 0;
    EXPECT_EQ(::read(connected[0], &byte, 1), 1);
    die(rank);
  };
  expect_loss_is_named(2, die_once_rank_1_is_connected, [&](LocalRank& rank) {
    if (rank.rank() == 0) end_and_free_rank_1(rank);
    std::thread(hold_at_news, rank.news()).detach();
  });
  for (const int fd : {connected[0], connected[1], held[0], held[1]}) ::close(fd);
}

TEST(Local_ranks, Name_a_rank_that_ended_before_it_joined) {
  expect_loss_is_named(1, [](LocalRank&) { ::_exit(4); });
}

TEST(Local_ranks, Go_on_without_a_loss) {
  const LocalResult result = run_local_ranks({.tool = "test", .size = 3}, [](LocalRank& rank) {
    Communicator comm(rank);
    comm.barrier();
    rank.report(std::to_string(rank.rank()));
    return Exit::ok;
  });
  EXPECT_EQ(result.exit, Exit::ok);
  EXPECT_EQ(result.reports, (std::vector<std::string>{"0", "1", "2"}));
}

}  // namespace
}  // namespace noria::perf
