#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <sstream>

#include "tests/e2e/tool_runs.hpp"

namespace noria::perf {
namespace {

TEST(Compare_mpi, Prints_a_row_per_size_and_both_commands_and_appends_them_to_a_file) {
  const std::string file = testing::TempDir() + "compare_mpi_test.md";
  ::unlink(file.c_str());
  const ToolEnd end = run_tool_to_end({"compare_mpi", "--sizes", "4K,16K", "--rounds", "1",
                                       "--seconds", "0.01", "--results", file});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_NE(end.out.find("\n| 4096 | "), std::string::npos) << end.out;
  EXPECT_NE(end.out.find("\n| 16384 | "), std::string::npos);
  EXPECT_NE(end.out.find("    mpirun "), std::string::npos);
  EXPECT_NE(end.out.find("    NORIA_RING_FETCH=auto "), std::string::npos);
  std::ostringstream written;
  written << std::ifstream(file).rdbuf();
  EXPECT_EQ(written.str(), "\n## " + end.out);
  ::unlink(file.c_str());
}

TEST(Compare_mpi, Bad_input_is_one_line_and_exit_2) {
  const ToolEnd end = run_tool_to_end({"compare_mpi", "--round", "5"});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_EQ(end.err, "compare_mpi: --round is not a flag of this tool; the nearest is --rounds\n");
}

}  // namespace
}  // namespace noria::perf
