#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/e2e/tool_runs.hpp"

namespace noria::perf {
namespace {

// The budgets are of one compiler; others count differently, by less than this.
constexpr const char* kMarginPercent = "25";

TEST(Instr_budget, Every_operation_is_within_its_budget) {
  const ToolEnd end =
      run_tool_to_end({"instr_budget", "--budget", NORIA_BUDGET_FILE, "--margin", kMarginPercent});
  EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
  EXPECT_EQ(lines_of(end.out).size(), 27U) << end.out;
}

TEST(Instr_budget, An_exceeded_budget_is_shown_and_exit_1) {
  const std::string file = testing::TempDir() + "instr_budget_test.txt";
  std::ofstream(file) << "send_8B 2 1 a test\nrecv_8B 1 1 a test\n";
  const ToolEnd end =
      run_tool_to_end({"instr_budget", "--budget", file, "--only", "send_8B", "--json"});
  ::unlink(file.c_str());
  EXPECT_EQ(end.exit_code, 1) << end.err;
  const auto json = nlohmann::json::parse(end.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << end.out;
  ASSERT_EQ(json["rows"].size(), 1U);
  EXPECT_EQ(json["rows"][0]["name"], "send_8B");
  EXPECT_EQ(json["rows"][0]["is_exceeded"], true);
  EXPECT_GT(json["rows"][0]["instructions"], 20.0);
}

TEST(Instr_budget, Bad_input_is_one_line_and_exit_2) {
  const ToolEnd no_file = run_tool_to_end({"instr_budget", "--budget", "/nowhere"});
  EXPECT_EQ(no_file.exit_code, 2);
  EXPECT_EQ(no_file.err,
            "instr_budget: --budget: '/nowhere' cannot be read; give the path of instr_budget.txt, "
            "which lies in perf/\n");
  const ToolEnd no_name = run_tool_to_end({"instr_budget", "--only", "send_8b"});
  EXPECT_EQ(no_name.exit_code, 2);
  EXPECT_EQ(no_name.err, "instr_budget: 'send_8b' is not an operation; the nearest is send_8B\n");
}

}  // namespace
}  // namespace noria::perf
