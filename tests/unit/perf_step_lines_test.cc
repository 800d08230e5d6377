#include "perf/step_lines.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "perf/exit_codes.hpp"

namespace noria::perf {
namespace {

std::string head(int rank, int ranks, int64_t offset_ns, int64_t error_ns,
                 const std::string& group = "1-1") {
  return R"({"noria_trace":1,"host":"a","group":")" + group + R"(","pid":1,"rank":)" +
         std::to_string(rank) + ",\"ranks\":" + std::to_string(ranks) +
         ",\"clock_offset_ns\":" + std::to_string(offset_ns) +
         ",\"clock_error_ns\":" + std::to_string(error_ns) + ",\"clock_measured_ns\":0}\n";
}

// Begins at `begin`, its last gradient comes 100 us later, and it ends after `ns`.
std::string step(int reducer, int number, int64_t begin, int64_t ns) {
  const nlohmann::json bucket{{"bucket", 0},
                              {"tensors", 2},
                              {"dtype", 7},
                              {"bytes", 8},
                              {"first_ns", begin + 1000},
                              {"queued_ns", begin + 2000},
                              {"ready_ns", begin + 100'000},
                              {"start_ns", begin + 3000},
                              {"end_ns", begin + ns - 10},
                              {"wire_ns", 5000}};
  nlohmann::json empty = bucket;
  empty["bucket"] = 1;
  empty["bytes"] = 0;
  return nlohmann::json{{"reducer", reducer},
                        {"step", number},
                        {"bytes", 8},
                        {"begin_ns", begin},
                        {"last_gradient_ns", begin + 100'000},
                        {"end_ns", begin + ns},
                        {"buckets", {bucket, empty}}}
             .dump() +
         "\n";
}

void expect_refused(const std::string& text, const std::string& part) {
  try {
    parse_step_lines(text, "f");
    ADD_FAILURE() << "accepted: " << text;
  } catch (const ToolError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
  }
}

TEST(Step_lines, Times_of_a_rank_are_put_on_the_clock_of_rank_0) {
  const StepLines lines =
      parse_step_lines(head(1, 2, 1'000'000, 300) + step(2, 7, 5'000'000, 150'000), "f");
  EXPECT_EQ(lines.ranks, 2);
  EXPECT_EQ(lines.rank.rank, 1);
  ASSERT_EQ(lines.rank.steps.size(), 1U);
  const TimelineStep& only = lines.rank.steps[0];
  EXPECT_EQ(only.name, "reducer 2, step 7");
  EXPECT_EQ(only.begin_ns, 4'000'000);
  EXPECT_EQ(only.last_gradient_ns, 4'100'000);
  // Expect: the bucket without bytes, which has no times, is left out.
  ASSERT_EQ(only.buckets.size(), 1U);
  EXPECT_EQ(only.buckets[0].first_ns, 4'001'000);
  EXPECT_EQ(only.buckets[0].wire_ns, 5000);
  // Expect: the error is told with what two quartzes drift apart in the 5 ms since.
  EXPECT_GT(lines.rank.clock_error_ns, 300);
  EXPECT_LT(lines.rank.clock_error_ns, 600);
}

TEST(Step_lines, A_clock_that_is_the_same_does_not_drift) {
  const StepLines lines = parse_step_lines(head(0, 1, 0, 0) + step(0, 0, 5'000'000, 150'000), "f");
  EXPECT_EQ(lines.rank.clock_error_ns, 0);
}

TEST(Step_lines, What_nobody_wrote_is_refused_by_file_and_line) {
  expect_refused("", "f: is empty");
  expect_refused("hello\n", "f:1: is not what NORIA_TRACE");
  expect_refused("{}\n", "f:1:");
  expect_refused("{\"noria_trace\":2}\n", "another version");
  expect_refused(head(0, 1, 0, 0) + "{\"step\":1}\n", "f:2:");
  const std::string whole = head(0, 1, 0, 0) + step(0, 0, 1, 2);
  expect_refused(whole.substr(0, whole.size() - 20), "f:2:");
}

std::string refusal(std::vector<StepLines> ranks) {
  try {
    join_ranks(std::move(ranks));
    return "";
  } catch (const ToolError& error) {
    return error.what();
  }
}

TEST(Step_lines, Ranks_are_joined_in_order_and_only_those_of_one_job) {
  const StepLines zero = parse_step_lines(head(0, 2, 0, 0), "a");
  const StepLines one = parse_step_lines(head(1, 2, 0, 0), "b");
  const Timeline both = join_ranks({one, zero});
  ASSERT_EQ(both.ranks.size(), 2U);
  EXPECT_EQ(both.ranks[0].rank, 0);
  EXPECT_EQ(both.title, "Steps of 2 of 2 ranks");
  EXPECT_EQ(join_ranks({one}).title, "Steps of 1 of 2 ranks");
  EXPECT_NE(refusal({one, one}).find("two files are of rank 1"), std::string::npos);
  EXPECT_NE(refusal({zero, parse_step_lines(head(1, 3, 0, 0), "c")}).find("rank 1 is one of 3"),
            std::string::npos);
  EXPECT_NE(refusal({zero, parse_step_lines(head(1, 2, 0, 0, "1-2"), "c")})
                .find("rank 1 is of another group than rank 0: give the files of one communicator"),
            std::string::npos);
}

TEST(Step_table, Names_the_slowest_rank_of_each_step) {
  const Timeline timeline = join_ranks(
      {parse_step_lines(head(0, 2, 0, 0) + step(0, 0, 0, 200'000) + step(0, 1, 0, 150'000), "a"),
       parse_step_lines(head(1, 2, 0, 0) + step(0, 0, 0, 180'000) + step(0, 1, 0, 190'000), "b")});
  const std::string table = step_table(timeline);
  EXPECT_NE(table.find("step 0       0      0.200        0.100     0.005       0.100\n"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("step 1       1      0.190        0.100     0.005       0.090\n"),
            std::string::npos)
      << table;
  EXPECT_NE(table.find("# median: step 0.190 ms, exposed 0.090 ms"), std::string::npos) << table;
}

TEST(Step_table, Is_of_the_first_rank_that_has_steps) {
  const std::string table =
      step_table(join_ranks({parse_step_lines(head(0, 2, 0, 0), "a"),
                             parse_step_lines(head(1, 2, 0, 0) + step(0, 3, 0, 180'000), "b")}));
  EXPECT_NE(table.find("step 3       1      0.180"), std::string::npos) << table;
}

TEST(Step_table, Of_no_step_is_a_head_without_figures) {
  EXPECT_TRUE(step_table({}).starts_with("#"));
  const Timeline none = join_ranks({parse_step_lines(head(0, 1, 0, 0), "a")});
  EXPECT_EQ(step_table(none).find("median"), std::string::npos) << step_table(none);
}

TEST(Step_lines, Files_without_a_step_are_refused_with_where_to_look) {
  const Timeline none = join_ranks({parse_step_lines(head(0, 1, 0, 0), "a")});
  try {
    require_steps(none);
    ADD_FAILURE() << "accepted";
  } catch (const ToolError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    const std::string text = error.what();
    EXPECT_NE(text.find("no step was recorded"), std::string::npos) << text;
    EXPECT_NE(text.find(".commN"), std::string::npos) << text;
  }
  require_steps(join_ranks({parse_step_lines(head(0, 1, 0, 0) + step(0, 0, 1, 2), "a")}));
}

}  // namespace
}  // namespace noria::perf
