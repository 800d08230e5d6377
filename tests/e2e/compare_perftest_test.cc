#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "tests/e2e/tool_runs.hpp"

namespace noria::perf {
namespace {

TEST(Compare_perftest, Prints_a_row_for_each_program_and_appends_them_to_a_file) {
  const std::string file = testing::TempDir() + "compare_perftest_test.md";
  ::unlink(file.c_str());
  const ToolEnd end = run_tool_to_end({"compare_perftest", "--sizes", "256K", "--rounds", "1",
                                       "--seconds", "0.01", "--results", file});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  for (const char* row :
       {"\n| ib_write_bw | 262144 | ", "\n| ib_write_bw | 64 | ", "\n| ib_write_bw -l 16 | 64 | ",
        "\n| ib_write_lat | 8 | ", "\n| ib_send_lat | 8 | ", "\n| transport_bw | 262144 | "})
    EXPECT_NE(end.out.find(row), std::string::npos) << row << " is not in:\n" << end.out;
  std::ostringstream written;
  written << std::ifstream(file).rdbuf();
  EXPECT_EQ(written.str(), "\n## " + end.out);
  ::unlink(file.c_str());
}

TEST(Compare_perftest, Bad_input_is_one_line_and_exit_2) {
  ToolEnd end = run_tool_to_end({"compare_perftest", "--round", "5"});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_EQ(end.err,
            "compare_perftest: --round is not a flag of this tool; the nearest is --rounds\n");

  end = run_tool_to_end({"compare_perftest", "--only", "ib_read"});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_EQ(end.err, "compare_perftest: --only: no program's name contains 'ib_read'\n");
}

TEST(Transport_bw, Prints_how_many_messages_a_second_it_carried) {
  const ToolEnd end =
      run_tool_to_end({"noria_soft", "transport_bw", "--bytes", "1M", "--messages", "100"},
                      {{"PATH", NORIA_BIN_DIR ":/usr/bin:/bin"}});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_GT(std::stod(end.out), 0);
}

}  // namespace
}  // namespace noria::perf
