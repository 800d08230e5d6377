// Ranks that a tool forked, when one of them is lost before all have met.
#include "perf/local_ranks.hpp"

#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include "base/clock.hpp"
#include "perf/communicator.hpp"
#include "tests/e2e/tool_runs.hpp"

namespace noria::perf {
namespace {

// Runs three ranks of which `victim` ends by `loss` before it joins.  Expect: the others name it.
void expect_loss_is_named(int victim, const std::function<void(LocalRank&)>& loss) {
  testing::internal::CaptureStderr();
  const Nanoseconds before = now_ns();
  const LocalResult result = run_local_ranks({.tool = "test", .size = 3}, [&](LocalRank& rank) {
    if (rank.rank() == victim) loss(rank);
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
