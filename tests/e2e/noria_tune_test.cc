// noria_tune as a user runs it.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/e2e/tool_runs.hpp"

namespace noria::perf {
namespace {

class NoriaTune : public testing::Test {
 protected:
  void TearDown() override { unlink(path_.c_str()); }
  ToolEnd run(const std::string& what, const std::string& text) const {
    std::ofstream(path_) << text;
    return run_tool_to_end({"noria_tune", what, path_});
  }
  std::string path_ = testing::TempDir() + "noria_tune_" + std::to_string(getpid());
};

TEST_F(NoriaTune, Check_says_that_a_table_is_well_or_what_is_not) {
  const std::string row = "all_reduce,*,2,8,*,*,*,*,Ring,LL,0,0,-,-,made up\n";
  const ToolEnd well = run("check", "noria_table,1\n" + row);
  EXPECT_EQ(well.exit_code, 0) << well.err;
  EXPECT_EQ(well.out, path_ + ": 1 rows, 0 constants, max_regret 0.05: all is well\n");
  const ToolEnd twice = run("check", "noria_table,1\n" + row + row);
  EXPECT_EQ(twice.exit_code, 1);
  EXPECT_EQ(twice.out, path_ +
                           ": line 3 is never reached: line 2 has the same choice and fits "
                           "wherever it does\n");
  const ToolEnd broken = run("check", "noria_table,1\nall_reduce,4M\n");
  EXPECT_EQ(broken.exit_code, 2);
  EXPECT_EQ(broken.out, "");
  EXPECT_NE(broken.err.find(path_ + ":2:"), std::string::npos) << broken.err;
}

TEST_F(NoriaTune, Check_says_the_same_as_JSON_whatever_the_files_name) {
  const std::string row = "all_reduce,*,2,8,*,*,*,*,Ring,LL,0,0,-,-,made up \xff\n";
  const std::string other = path_ + "\xff";
  std::ofstream(path_) << "noria_table,1\n" << row << row;
  std::ofstream(other) << "noria_table,1\nmax_regret,0.1\n" << row;
  const ToolEnd end = run_tool_to_end({"noria_tune", "check", path_, other, "--json"});
  unlink(other.c_str());
  EXPECT_EQ(end.exit_code, 1) << end.err;
  const auto json = nlohmann::json::parse(end.out);
  ASSERT_EQ(json.size(), 2u);
  EXPECT_EQ(json[0]["table"], path_);
  EXPECT_EQ(json[0]["findings"].size(), 1u);
  EXPECT_EQ(json[1]["rows"], 1);
  EXPECT_EQ(json[1]["max_regret"], 0.1);
  EXPECT_TRUE(json[1]["findings"].empty());
}

TEST_F(NoriaTune, A_table_too_long_to_compare_each_row_with_each_is_refused) {
  std::string table = "noria_table,1\n";
  for (int i = 0; i < 10'001; ++i) table += "all_reduce,*,2,8,*,*,*,*,Ring,LL,0,0,-,-,made up\n";
  const ToolEnd end = run("check", table);
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_NE(end.err.find("has 10001 rows"), std::string::npos) << end.err;
}

TEST_F(NoriaTune, Rows_are_what_a_log_has_and_doubts_stand_on_standard_error) {
  const ToolEnd end = run("rows",
                          "# size count type time algbw busbw error time algbw busbw error\n"
                          " 8 2 float 5 0 0 0 6 0 0 0\n");
  EXPECT_EQ(end.exit_code, 0);
  const auto lines = lines_of(end.out);
  ASSERT_EQ(lines.size(), 2u);
  EXPECT_EQ(lines[1], "8\t2\tfloat\t-\t-\t5\t0\t0\t0\t6\t0\t0\t0\t1\t2\t-");
  EXPECT_NE(end.err.find("table 1 is not to be trusted: it ends without"), std::string::npos);
  const ToolEnd none = run("rows", "nothing here\n");
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_NE(none.err.find("has no row of nccl-tests"), std::string::npos) << none.err;
}

TEST_F(NoriaTune, Bad_usage_is_one_line_and_exit_2) {
  for (const std::vector<std::string>& command :
       std::vector<std::vector<std::string>>{{"noria_tune"},
                                             {"noria_tune", "fix", "x"},
                                             {"noria_tune", "check"},
                                             {"noria_tune", "check", "--jason", "x"},
                                             {"noria_tune", "check", "/nowhere/x"},
                                             {"noria_tune", "rows", "/nowhere/x"},
                                             {"noria_tune", "rows", "/"},
                                             {"noria_tune", "rows", "/dev/zero"}}) {
    const ToolEnd end = run_tool_to_end(command);
    EXPECT_EQ(end.exit_code, 2);
    EXPECT_EQ(lines_of(end.err).size(), 1u) << end.err;
  }
  EXPECT_EQ(run_tool_to_end({"noria_tune", "--help"}).exit_code, 0);
}

}  // namespace
}  // namespace noria::perf
