#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "tests/e2e/tool_runs.hpp"

namespace noria::perf {
namespace {

TEST(Compare_net, Prints_a_row_for_each_comparison_and_appends_them_to_a_file) {
  const std::string file = testing::TempDir() + "compare_net_test.md";
  ::unlink(file.c_str());
  const ToolEnd end = run_tool_to_end(
      {"compare_net", "--sizes", "256K", "--rounds", "1", "--seconds", "0.01", "--results", file});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  for (const char* row : {"\n| net_perf | 262144 | ", "\n| net_perf --buffers 8 | 262144 | ",
                          "\n| net_perf --test lat | 8 | ", "\n| transport_bw | 262144 | "})
    EXPECT_NE(end.out.find(row), std::string::npos) << row << " is not in:\n" << end.out;
  std::ostringstream written;
  written << std::ifstream(file).rdbuf();
  EXPECT_EQ(written.str(), "\n## " + end.out);
  ::unlink(file.c_str());
}

TEST(Compare_net, Bad_input_is_one_line_and_exit_2) {
  const ToolEnd end = run_tool_to_end({"compare_net", "--only", "ib_read"});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_EQ(end.err, "compare_net: --only: no row's name contains 'ib_read'\n");
}

}  // namespace
}  // namespace noria::perf
