#include <gtest/gtest.h>

#include "tests/e2e/tool_runs.hpp"

namespace noria::perf {
namespace {

TEST(Noria_soft, Sets_the_three_variables_to_one_absolute_path) {
  const ToolEnd end = run_tool_to_end(
      {"noria_soft", "/bin/sh", "-c",
       "echo \"$LD_PRELOAD\"; echo \"$NORIA_IBVERBS\"; echo \"$NCCL_IBVERBS_LIB\""});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  const auto lines = lines_of(end.out);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_TRUE(lines[0].starts_with("/") && lines[0].ends_with("/libnoria-softverbs.so"))
      << lines[0];
  EXPECT_EQ(lines[1], lines[0]);
  EXPECT_EQ(lines[2], lines[0]);
}

TEST(Noria_soft, Keeps_what_else_is_preloaded) {
  const ToolEnd end = run_tool_to_end({"noria_soft", "/bin/sh", "-c", "echo \"$LD_PRELOAD\""},
                                      {{"LD_PRELOAD", "libm.so.6"}});
  EXPECT_TRUE(end.out.ends_with("/libnoria-softverbs.so:libm.so.6\n")) << end.out << end.err;
}

TEST(Noria_soft, Becomes_the_program) {
  RunningTool tool({"noria_soft", "/bin/sh", "-c", "echo $$; exit 7", "--help"});
  const pid_t pid = tool.pid();
  const ToolEnd end = tool.end();
  EXPECT_EQ(end.exit_code, 7);
  EXPECT_EQ(end.out, std::to_string(pid) + "\n");
}

TEST(Noria_soft, Help_names_the_variables) {
  const ToolEnd end = run_tool_to_end({"noria_soft", "--help"});
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_NE(end.out.find("NCCL_IBVERBS_LIB"), std::string::npos);
}

TEST(Noria_soft, Usage_is_one_line_and_exit_2) {
  for (const std::vector<std::string>& command : {std::vector<std::string>{"noria_soft"},
                                                  {"noria_soft", "--hlep"},
                                                  {"noria_soft", "-v", "x"}}) {
    const ToolEnd end = run_tool_to_end(command);
    EXPECT_EQ(end.exit_code, 2);
    EXPECT_EQ(lines_of(end.err).size(), 1U) << end.err;
    EXPECT_NE(end.err.find("--help"), std::string::npos) << end.err;
  }
}

TEST(Noria_soft, A_bad_variable_is_said_before_the_program_starts) {
  const ToolEnd end =
      run_tool_to_end({"noria_soft", "/bin/echo", "started"}, {{"NORIA_SOFT_COPY", "teleport"}});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_EQ(end.out, "");
  EXPECT_NE(end.err.find("NORIA_SOFT_COPY: 'teleport'"), std::string::npos) << end.err;
}

TEST(Noria_soft, A_missing_program_is_127_and_one_that_cannot_run_126) {
  EXPECT_EQ(run_tool_to_end({"noria_soft", "/nowhere/program"}).exit_code, 127);
  const ToolEnd end = run_tool_to_end({"noria_soft", "/"});
  EXPECT_EQ(end.exit_code, 126);
  EXPECT_NE(end.err.find("noria_soft: /: "), std::string::npos) << end.err;
}

}  // namespace
}  // namespace noria::perf
