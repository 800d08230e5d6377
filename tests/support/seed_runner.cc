#include "tests/support/seed_runner.hpp"

#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace noria::test {
namespace {

SeedRun the_run = nullptr;
uint64_t the_seeds = 0;
std::string the_command;

// One seed in this process; what main() returns.
int replay(uint64_t seed, bool prints) {
  const SeedReport report = the_run(seed, prints);
  std::printf("trace %016llx, %llu completions, %llu of them failures, %llu events\n%s\n",
              static_cast<unsigned long long>(report.trace),
              static_cast<unsigned long long>(report.completions),
              static_cast<unsigned long long>(report.failures),
              static_cast<unsigned long long>(report.events),
              report.wrong[0] != 0 ? report.wrong : "all that must hold held");
  return report.wrong[0] == 0 && !testing::Test::HasFailure() ? 0 : 1;
}

}  // namespace

std::string replay_of(uint64_t seed) {
  return the_command + " --seed " + std::to_string(seed) + " --print";
}

SeedReport report_of(uint64_t seed) {
  constexpr int kLimitMs = 20000;
  SeedReport report;
  std::snprintf(report.wrong, sizeof report.wrong, "the run did not come to an end");
  int ends[2];
  if (::pipe(ends) != 0) return report;
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    const SeedReport mine = the_run(seed, false);
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

SeedTotals run_all_seeds() {
  SeedTotals totals;
  for (uint64_t seed = 1; seed <= the_seeds; ++seed) {
    const SeedReport report = report_of(seed);
    if (report.wrong[0] != 0)
      totals.wrong += std::string(report.wrong) + ": " + replay_of(seed) + "\n";
    totals.completions += report.completions;
    totals.failures += report.failures;
    totals.events += report.events;
  }
  totals.seeds = the_seeds;
  std::printf("%llu seeds, %llu completions, %llu failures, %llu events\n",
              static_cast<unsigned long long>(totals.seeds),
              static_cast<unsigned long long>(totals.completions),
              static_cast<unsigned long long>(totals.failures),
              static_cast<unsigned long long>(totals.events));
  return totals;
}

std::string differing_seeds(uint64_t count) {
  std::string differing;
  for (uint64_t seed = 1; seed <= count; ++seed) {
    const SeedReport first = report_of(seed), second = report_of(seed);
    if (first.trace != second.trace) differing += replay_of(seed) + "\n";
  }
  return differing;
}

int run_seed_tests(int argc, char** argv, SeedRun run, uint64_t seeds) {
  testing::InitGoogleTest(&argc, argv);
  the_run = run;
  the_seeds = seeds;
  // The folder of the device tree, which goes with the test.
  namespace fs = std::filesystem;
  std::string folder = (fs::temp_directory_path() / "noria_seeds_XXXXXX").string();
  ::setenv("XDG_RUNTIME_DIR", mkdtemp(folder.data()), 1);
  const char* library = std::getenv("NORIA_IBVERBS");
  the_command =
      std::string("NORIA_IBVERBS=") + (library != nullptr ? library : "LIBRARY") + " " + argv[0];
  uint64_t seed = 0;
  bool prints = false;
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    prints = prints || flag == "--print";
    if (i + 1 < argc && flag == "--seed") seed = std::strtoull(argv[i + 1], nullptr, 10);
    if (i + 1 < argc && flag == "--seeds") the_seeds = std::strtoull(argv[i + 1], nullptr, 10);
  }
  const int result = seed != 0 ? replay(seed, prints) : RUN_ALL_TESTS();
  fs::remove_all(folder);
  return result;
}

}  // namespace noria::test
