// A thousand runs of random traffic with faults over two rails, one thread and a clock that stands:
// what must hold, holds in all of them (tests/support/seeded_traffic.hpp), and a seed gives the
// same run again.
//
//   soft_seeds_test --seed 123 [--print]   replays one, with the trace
//   soft_seeds_test --seeds 20000          runs more of them
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "tests/support/seeded_traffic.hpp"
#include "tests/support/verbs_fixture.hpp"

namespace noria::test {
namespace {

uint64_t the_seeds = 1000;
std::string the_command;

std::string replay_of(uint64_t seed) {
  return the_command + " --seed " + std::to_string(seed) + " --print";
}

// The run of a seed in a process of its own; a report that says so where it ended badly.
SeedReport report_of(uint64_t seed) {
  constexpr int kLimitMs = 20000;
  SeedReport report;
  std::snprintf(report.wrong, sizeof report.wrong, "the run did not come to an end");
  int ends[2];
  if (::pipe(ends) != 0) return report;
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const SeedReport mine = run_seed(seed, false);
    const bool is_good =
        !testing::Test::HasFailure() && ::write(ends[1], &mine, sizeof mine) == sizeof mine;
    ::_exit(is_good ? 0 : 1);
  }
  ::close(ends[1]);
  pollfd answer{ends[0], POLLIN, 0};
  SeedReport theirs;
  if (::poll(&answer, 1, kLimitMs) == 1 && ::read(ends[0], &theirs, sizeof theirs) == sizeof theirs)
    report = theirs;
  ::close(ends[0]);
  ::kill(child, SIGKILL);  // it has told all
  ::waitpid(child, nullptr, 0);
  return report;
}

// What went wrong is told at the end: children inherit failures, and these are not theirs.
TEST(SoftSeeds, What_must_hold_holds_in_every_run) {
  uint64_t completions = 0, failures = 0, events = 0;
  std::string wrong;
  for (uint64_t seed = 1; seed <= the_seeds; ++seed) {
    const SeedReport report = report_of(seed);
    if (report.wrong[0] != 0) wrong += std::string(report.wrong) + ": " + replay_of(seed) + "\n";
    completions += report.completions;
    failures += report.failures;
    events += report.events;
  }
  EXPECT_EQ(wrong, "");
  // What has never happened has not been tested.
  EXPECT_GT(completions, the_seeds * 20);
  EXPECT_GT(failures, the_seeds / 2);
  EXPECT_GT(events, the_seeds / 10);
  std::printf("%llu completions, %llu of them failures, %llu events\n",
              static_cast<unsigned long long>(completions),
              static_cast<unsigned long long>(failures), static_cast<unsigned long long>(events));
}

TEST(SoftSeeds, A_seed_gives_the_same_run_again) {
  std::string differing;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    const SeedReport first = report_of(seed), second = report_of(seed);
    if (first.trace != second.trace || first.completions != second.completions)
      differing += replay_of(seed) + "\n";
  }
  EXPECT_EQ(differing, "");
  EXPECT_NE(report_of(1).trace, report_of(2).trace);
}

// One seed in this process; what main() returns.
int replay(uint64_t seed, bool prints) {
  const SeedReport report = run_seed(seed, prints);
  std::printf("trace %016llx, %llu completions, %llu of them failures, %llu events\n%s\n",
              static_cast<unsigned long long>(report.trace),
              static_cast<unsigned long long>(report.completions),
              static_cast<unsigned long long>(report.failures),
              static_cast<unsigned long long>(report.events),
              report.wrong[0] != 0 ? report.wrong : "all that must hold held");
  return report.wrong[0] == 0 && !testing::Test::HasFailure() ? 0 : 1;
}

int run(int argc, char** argv) {
  testing::InitGoogleTest(&argc, argv);
  // The folder of the device tree, which goes with the test.
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "noria_seeds_XXXXXX").string();
  ::setenv("XDG_RUNTIME_DIR", mkdtemp(folder.data()), 1);
  the_command =
      "NORIA_IBVERBS=" +
      std::string(std::getenv("NORIA_IBVERBS") != nullptr ? std::getenv("NORIA_IBVERBS")
                                                          : "build/lib/libnoria-softverbs.so") +
      " " + argv[0];
  uint64_t seed = 0;
  bool prints = false;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    prints = prints || flag == "--print";
    if (i + 1 < argc && flag == "--seed") seed = std::strtoull(argv[i + 1], nullptr, 10);
    if (i + 1 < argc && flag == "--seeds") the_seeds = std::strtoull(argv[i + 1], nullptr, 10);
  }
  verbs();  // loaded before any fork
  const int result = seed != 0 ? replay(seed, prints) : RUN_ALL_TESTS();
  fs::remove_all(folder);
  return result;
}

}  // namespace
}  // namespace noria::test

int main(int argc, char** argv) { return noria::test::run(argc, argv); }
