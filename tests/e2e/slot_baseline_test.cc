#include <gtest/gtest.h>

#include "tests/e2e/tool_runs.hpp"

namespace noria::perf {
namespace {

ToolEnd run_slot_baseline(const std::vector<std::string>& options) {
  std::vector<std::string> command{"slot_baseline"};
  command.insert(command.end(), options.begin(), options.end());
  return run_tool_to_end(command, {});
}

TEST(SlotBaseline, Prints_a_row_for_each_size_and_way) {
  const ToolEnd end = run_slot_baseline({"--sizes", "4K,100", "--rounds", "1"});

  // Expect: a head and two times three rows.
  EXPECT_EQ(end.exit_code, 0) << end.err;
  const std::vector<std::string> lines = lines_of(end.out);
  ASSERT_EQ(lines.size(), 7U) << end.out;
  EXPECT_NE(lines[1].find("4096  plain stores"), std::string::npos) << lines[1];
  EXPECT_NE(lines[6].find("100  plain, lines taken"), std::string::npos) << lines[6];
}

TEST(SlotBaseline, Refuses_bad_input_in_one_line) {
  for (const std::vector<std::string>& bad :
       {std::vector<std::string>{"--sizes", "0"}, {"--rounds", "x"}, {"--size", "4K"}}) {
    const ToolEnd end = run_slot_baseline(bad);
    EXPECT_EQ(end.exit_code, 2) << bad.front();
    EXPECT_EQ(lines_of(end.err).size(), 1U) << end.err;
  }
}

}  // namespace
}  // namespace noria::perf
