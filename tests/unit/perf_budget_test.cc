#include "perf/budget.hpp"

#include <gtest/gtest.h>

#include "perf/callgrind.hpp"
#include "perf/exit_codes.hpp"

namespace noria::perf {
namespace {

// A tool that calls the device, which calls libc; libc is called by the tool too.
constexpr const char* kProfile = R"(version: 1
creator: callgrind-3.19.0
positions: line
events: Ir
summary: 1000

ob=(1) /build/bin/tool
fl=(1) send.cc
fn=(1) send
16 100
+2 10
cob=(2) /build/lib/libdevice.so
cfn=(2) post
calls=5 0
18 300
cfn=(3) helper
calls=5 0
* 30
19

fn=(3)
4 30

ob=(2)
fn=(2)
7 200
cob=(3) /lib/libc.so.6
cfn=(4) memcpy
calls=5 0
7 100

ob=(3)
fn=(4)
1 140

ob=(1)
fn=(1)
cob=(3)
cfn=(4)
calls=2 0
20 40

totals: 480
)";

TEST(Callgrind, What_the_counting_program_executes_itself_may_be_left_out_too) {
  // 40 of libc on its behalf.
  EXPECT_EQ(instructions_outside(kProfile, "libdevice.so", "/tool"), 40U);
}

TEST(Callgrind, What_one_library_did_and_had_done_is_left_out) {
  // 100 + 10 + 30 of the tool, 40 of libc on its behalf.
  EXPECT_EQ(instructions_outside(kProfile, "libdevice.so"), 180U);
  EXPECT_EQ(instructions_outside(kProfile, "libother.so"), 480U);
}

TEST(Callgrind, What_is_no_count_of_instructions_is_no_number) {
  EXPECT_FALSE(instructions_outside("", "libdevice.so"));
  EXPECT_FALSE(instructions_outside("events: Dr\nob=(1) a\nfn=(1) f\n1 5\n", "libdevice.so"));
  // Calls that cost more than there is: cut short.
  EXPECT_FALSE(instructions_outside(
      "events: Ir\nob=(1) a\nfn=(1) f\ncob=(2) libdevice.so\ncalls=1 0\n1 5\n", "libdevice.so"));
}

TEST(Budget_file, A_line_is_name_budget_goal_source) {
  const auto budgets =
      parse_budgets("# a comment\n\nsend 255 330  half of NCCL's # so\nread 3 0 x\n", "b.txt");
  ASSERT_EQ(budgets.size(), 2U);
  EXPECT_EQ(budgets[0].name, "send");
  EXPECT_EQ(budgets[0].instructions, 255U);
  EXPECT_EQ(budgets[0].goal, 330U);
  EXPECT_EQ(budgets[0].source, "half of NCCL's ");
  EXPECT_EQ(budgets[1].goal, 0U);
}

std::string refusal(const std::string& text) {
  try {
    parse_budgets(text, "b.txt");
  } catch (const ToolError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    return error.what();
  }
  return "";
}

TEST(Budget_file, Bad_lines_are_refused_by_file_and_line) {
  EXPECT_EQ(refusal("# nothing\n"), "b.txt: no budget stands in it");
  EXPECT_EQ(refusal("send 255\n"), "b.txt:1: a line is: name budget goal source");
  EXPECT_EQ(refusal("send 255 330\n"), "b.txt:1: a line is: name budget goal source");
  EXPECT_EQ(refusal("\nsend 0 330 x\n"),
            "b.txt:2: the budget of send is '0'; it takes 1 to 1000000000 instructions");
  EXPECT_EQ(refusal("send 1 -1 x\n"),
            "b.txt:1: the goal of send is '-1'; it takes 0 to 1000000000 instructions");
  EXPECT_EQ(refusal("send 1 0 x\nsend 2 0 x\n"), "b.txt:2: send has a budget already");
}

TEST(Budget_table, Says_measured_over_budget_and_what_is_exceeded) {
  const std::vector<Counted> rows{{{"send", 200, 330, "x"}, 190.5},
                                  {{"recv", 200, 100, "x"}, 200},
                                  {{"read", 200, 0, "x"}, 221}};
  EXPECT_EQ(budget_table(rows, 10),
            "# operation              instructions    budget   ratio    goal\n"
            "  send                          190.5       200   0.953     330  goal met\n"
            "  recv                          200.0       200   1.000     100  above goal\n"
            "  read                          221.0       200   1.105       -  EXCEEDED\n");
  EXPECT_FALSE(rows[1].is_exceeded(0));
  EXPECT_FALSE(rows[2].is_exceeded(11));
  const auto json = budget_json(rows, 10);
  EXPECT_EQ(json["rows"][2]["is_exceeded"], true);
  EXPECT_EQ(json["rows"][0]["goal"], 330);
}

}  // namespace
}  // namespace noria::perf
