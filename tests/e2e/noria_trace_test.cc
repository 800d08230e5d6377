// From NORIA_TRACE to the pictures: ranks write their steps, and the tool draws them.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/e2e/tool_runs.hpp"
#include "tests/support/scratch_folder.hpp"

namespace noria::perf {
namespace {

namespace fs = std::filesystem;

class NoriaTrace : public test::ScratchFolder {
 protected:
  // Five steps on two ranks.
  ToolEnd run_job(const std::string& trace) const {
    return run_tool_to_end({"overlap_perf", "--trace", "resnet18", "--mode", "bucketed", "-g", "2",
                            "--backward-ms", "20", "--steps", "4", "--warmup", "1"},
                           {{"NORIA_SOFT", "1"}, {"NORIA_TRACE", trace}});
  }
};

TEST_F(NoriaTrace, Draws_what_the_ranks_of_a_job_wrote) {
  const ToolEnd job = run_job(in_folder("job"));
  ASSERT_EQ(job.exit_code, 0) << job.err;
  const std::vector<std::string> files{in_folder("job.rank0.jsonl"), in_folder("job.rank1.jsonl")};

  // Expect: a line a step, after the one that says whose they are.
  const ToolEnd table = run_tool_to_end({"noria_trace", files[0], files[1]});
  EXPECT_EQ(table.exit_code, 0) << table.err;
  EXPECT_TRUE(table.out.starts_with("# Steps of 2 of 2 ranks")) << table.out;
  EXPECT_NE(table.out.find("step 4  "), std::string::npos) << table.out;

  const ToolEnd drawn = run_tool_to_end({"noria_trace", files[1], files[0], "--chrome",
                                         in_folder("job.json"), "--html", in_folder("job.html")});
  EXPECT_EQ(drawn.exit_code, 0) << drawn.err;
  // Expect: all ranks on one clock, whose error is told; on one host it is none.
  const auto json = nlohmann::json::parse(read("job.json"), nullptr, false);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["otherData"]["rank 1"], "clock within 0 ns of rank 0's");
  std::set<int> ranks;
  int buckets = 0;
  for (const auto& event : json["traceEvents"]) {
    ranks.insert(event["pid"].get<int>());
    buckets += event["name"] == "bucket 0" ? 1 : 0;
    if (event["ph"] != "X") continue;
    EXPECT_GE(event["dur"].get<double>(), 0) << event;
  }
  EXPECT_EQ(ranks, (std::set<int>{0, 1}));
  EXPECT_EQ(buckets, 2 * 5);
  // Expect: a page that needs nothing but itself.
  const std::string page = read("job.html");
  EXPECT_TRUE(page.starts_with("<!doctype html>"));
  EXPECT_NE(page.find("\"name\":\"step 4\""), std::string::npos);
  for (const char* other : {"src=", "href=", "@import", "fetch("})
    EXPECT_EQ(page.find(other), std::string::npos) << other;
}

TEST_F(NoriaTrace, A_job_whose_trace_cannot_be_written_does_not_start) {
  const ToolEnd job = run_job(in_folder("none/job"));
  EXPECT_EQ(job.exit_code, 2) << job.err;
  // Expect: both ranks say which rank could not write what.
  EXPECT_NE(job.err.find("rank 0: NORIA_TRACE: cannot write " + in_folder("none/job.rank0.jsonl") +
                         ": No such file or directory"),
            std::string::npos)
      << job.err;
}

TEST_F(NoriaTrace, Overlap_perf_draws_its_last_steps_itself) {
  const ToolEnd end =
      run_tool_to_end({"overlap_perf", "--trace", "resnet18", "-g", "2", "--backward-ms", "20",
                       "--steps", "2", "--html", in_folder("modes.html")},
                      {{"NORIA_SOFT", "1"}});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  const std::string page = read("modes.html");
  for (const char* mode : {"sequential", "per-tensor", "bucketed"})
    EXPECT_NE(page.find(std::string("\"name\":\"") + mode + "\""), std::string::npos) << mode;
  EXPECT_NE(end.out.find("off a clock outside."), std::string::npos) << end.out;
}

TEST_F(NoriaTrace, Bad_input_is_one_line_and_exit_2) {
  std::ofstream(in_folder("odd")) << "hello\n";
  for (const std::vector<std::string>& arguments :
       std::vector<std::vector<std::string>>{{},
                                             {in_folder("absent")},
                                             {in_folder("odd")},
                                             {in_folder("")},
                                             {in_folder("odd"), "--html", ""}}) {
    std::vector<std::string> command{"noria_trace"};
    command.insert(command.end(), arguments.begin(), arguments.end());
    const ToolEnd end = run_tool_to_end(command);
    EXPECT_EQ(end.exit_code, 2) << end.err;
    EXPECT_EQ(lines_of(end.err).size(), 1U) << end.err;
  }
}

TEST_F(NoriaTrace, No_file_that_it_reads_is_written_over) {
  const std::string input = in_folder("job"), link = in_folder("link");
  std::ofstream(input) << "steps\n";
  fs::create_symlink(input, link);
  for (const char* flag : {"--html", "--chrome"})
    for (const std::string& output : {input, link}) {
      const ToolEnd end = run_tool_to_end({"noria_trace", input, flag, output});
      EXPECT_EQ(end.exit_code, 2) << end.err;
      EXPECT_NE(end.err.find("is one of the files that are read"), std::string::npos) << end.err;
      EXPECT_EQ(read("job"), "steps\n");
    }
  const std::string both = in_folder("both");
  const ToolEnd end = run_tool_to_end({"noria_trace", input, "--html", both, "--chrome", both});
  EXPECT_EQ(end.exit_code, 2) << end.err;
  EXPECT_NE(end.err.find("name the same file"), std::string::npos) << end.err;
}

}  // namespace
}  // namespace noria::perf
