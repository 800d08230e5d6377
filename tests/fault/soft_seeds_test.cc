// A thousand runs of random traffic with faults over two rails, one thread and a clock that stands:
// what must hold, holds in all of them (tests/support/seeded_traffic.hpp), and a seed gives the
// same run again.
#include <gtest/gtest.h>

#include "tests/support/seeded_traffic.hpp"
#include "tests/support/verbs_fixture.hpp"

namespace noria::test {
namespace {

// Told at the end: a child inherits failures, and these are not its own.
TEST(SoftSeeds, What_must_hold_holds_in_every_run) {
  const SeedTotals totals = run_all_seeds();
  EXPECT_EQ(totals.wrong, "");
  // What has never happened has not been tested.
  EXPECT_GT(totals.completions, totals.seeds * 20);
  EXPECT_GT(totals.failures, totals.seeds / 2);
  EXPECT_GT(totals.events, totals.seeds / 10);
}

TEST(SoftSeeds, A_seed_gives_the_same_run_again) {
  EXPECT_EQ(differing_seeds(40), "");
  EXPECT_NE(report_of(1).trace, report_of(2).trace);
}

}  // namespace
}  // namespace noria::test

int main(int argc, char** argv) {
  noria::test::verbs();  // loaded before any fork
  return noria::test::run_seed_tests(argc, argv, &noria::test::run_seed, 1000);
}
