#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "tests/e2e/tool_runs.hpp"

namespace noria::perf {
namespace {

class OverlapPerf : public testing::Test {
 protected:
  // Nine tensors of 1 MiB and smaller ones, of three types.
  void SetUp() override {
    nlohmann::json tensors = nlohmann::json::array();
    for (int i = 0; i < 9; ++i)
      tensors.push_back(
          {{"name", "big" + std::to_string(i)}, {"shape", {512, 512}}, {"dtype", "f32"}});
    tensors.push_back({{"name", "half"}, {"shape", {1001}}, {"dtype", "f16"}});
    tensors.push_back({{"name", "brain"}, {"shape", {3, 7}}, {"dtype", "bf16"}});
    tensors.push_back({{"name", "nothing"}, {"shape", {0}}, {"dtype", "f32"}});
    tensors.push_back({{"name", "one"}, {"shape", nlohmann::json::array()}, {"dtype", "f32"}});
    std::ofstream(trace_) << nlohmann::json{{"name", "small"}, {"tensors", tensors}};
  }
  void TearDown() override {
    ::unlink(trace_.c_str());
    ::unlink(timeline_.c_str());
  }

  ToolEnd run(std::vector<std::string> flags, const Environment& environment = {}) {
    std::vector<std::string> command{"overlap_perf", "--trace", trace_,          "--steps", "2",
                                     "--warmup",     "1",       "--backward-ms", "10"};
    command.insert(command.end(), flags.begin(), flags.end());
    return run_tool_to_end(command, environment);
  }

  const std::string trace_ = testing::TempDir() + "overlap_perf_test.json";
  const std::string timeline_ = testing::TempDir() + "overlap_perf_test.timeline";
};

TEST_F(OverlapPerf, All_modes_are_right_on_two_ranks_in_the_arena_and_by_copies) {
  for (const std::vector<std::string>& memory :
       std::vector<std::vector<std::string>>{{}, {"--copy"}}) {
    std::vector<std::string> flags{"-g", "2", "--json"};
    flags.insert(flags.end(), memory.begin(), memory.end());
    const ToolEnd end = run(flags);
    EXPECT_EQ(end.exit_code, 0) << end.err;
    const auto json = nlohmann::json::parse(end.out, nullptr, false);
    ASSERT_TRUE(json.is_object()) << end.out;
    ASSERT_EQ(json["modes"].size(), 4U);
    for (const auto& mode : json["modes"]) {
      EXPECT_EQ(mode["wrong"], 0) << mode;
      EXPECT_GE(mode["step_ms"].get<double>(), 10) << mode;
      EXPECT_GT(mode["communication_ms"].get<double>(), 0) << mode;
    }
    EXPECT_EQ(json["arena"], memory.empty());
  }
}

TEST_F(OverlapPerf, Modes_are_chosen_and_the_plan_of_DDP_is_beside_whatever_plan) {
  const ToolEnd end = run({"-g", "2", "--mode", "when-full,bucketed", "--bucket-mib", "2", "--plan",
                           "strict", "--json"},
                          {{"NORIA_SOFT_RATE_GBIT", "4"}});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  const auto json = nlohmann::json::parse(end.out, nullptr, false);
  ASSERT_EQ(json["modes"].size(), 2U) << end.out;
  EXPECT_EQ(json["modes"][0]["mode"], "bucketed");
  EXPECT_EQ(json["modes"][1]["mode"], "when-full");
  // The last tensors of the backward pass are registered first: one, of the first bucket's type.
  EXPECT_EQ(json["tail_bytes"], 1048576);
  // Two ranks: each sends as many bytes as there are.
  EXPECT_GE(json["tail_ms"].get<double>(), 0.9 * 1048576 * 8 / 4e9 * 1e3);
}

TEST_F(OverlapPerf, Bounds_by_one_all_reduce_of_everything_want_one_that_was_measured) {
  for (const char* modes : {"bucketed", "per-tensor,bucketed"}) {
    const ToolEnd table = run({"-g", "2", "--mode", modes});
    ASSERT_EQ(table.exit_code, 0) << table.err;
    for (const char* bound : {"one all-reduce of all", "No order of sending", "never rests"})
      EXPECT_EQ(table.out.find(bound), std::string::npos) << table.out;
  }
  const ToolEnd with = run({"-g", "2", "--mode", "sequential,bucketed"});
  EXPECT_NE(with.out.find("one all-reduce of all of them"), std::string::npos) << with.out;
}

TEST_F(OverlapPerf, Three_ranks_are_right_by_messages_and_by_reads) {
  for (const char* fetch : {"read", "message"}) {
    const ToolEnd end = run({"-g", "3", "--bucket-mib", "2"}, {{"NORIA_RING_FETCH", fetch}});
    EXPECT_EQ(end.exit_code, 0) << fetch << '\n' << end.out << end.err;
  }
}

TEST_F(OverlapPerf, The_timeline_shows_every_rank_and_no_bucket_faster_than_the_shaped_link) {
  const ToolEnd end =
      run({"-g", "2", "--mode", "bucketed", "--bucket-mib", "4", "--timeline", timeline_, "--json"},
          {{"NORIA_SOFT_RATE_GBIT", "4"}});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  std::ifstream file(timeline_);
  const auto json = nlohmann::json::parse(file, nullptr, false);
  ASSERT_TRUE(json.is_object());
  int buckets = 0;
  std::set<int> ranks;
  for (const auto& event : json["traceEvents"]) {
    ranks.insert(event["pid"].get<int>());
    const std::string name = event["name"];
    if (event["ph"] != "X" || !name.starts_with("bucket ")) continue;
    const double bytes = event["args"]["bytes"];
    if (bytes < 1 << 20) continue;  // small ones may fit into what the shaper lets through at once
    ++buckets;
    // Two ranks: each sends as many bytes as the bucket has.
    const double least_us = bytes * 8 / 4e9 * 1e6;
    EXPECT_GE(event["dur"].get<double>(), 0.9 * least_us) << event;
  }
  EXPECT_EQ(ranks, (std::set<int>{0, 1}));
  EXPECT_GE(buckets, 4);
}

TEST_F(OverlapPerf, A_rank_killed_in_a_long_backward_pass_is_named_by_the_others) {
  for (const char* mode : {"sequential", "bucketed"})
    for (const size_t victim : {size_t{1}, size_t{0}}) {
      RunningTool tool({"overlap_perf", "--trace", trace_, "-g", "3", "--mode", mode,
                        "--backward-ms", "3600000"});
      const std::vector<pid_t> ranks = tool.children(3);
      ASSERT_EQ(ranks.size(), 3U);
      ::poll(nullptr, 0, 700);  // well into the first step; what is expected holds at any time
      ::kill(ranks[victim], SIGKILL);
      expect_named_by_all_others(tool.end(), "overlap_perf", 3, victim);
    }
}

TEST_F(OverlapPerf, A_ratio_shapes_the_link_and_says_how) {
  const ToolEnd end = run({"-g", "2", "--comm-ratio", "1"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_NE(end.out.find(" Gbit/s, 20 us latency, so that communication = 1 x backward\n"),
            std::string::npos)
      << end.out;
}

TEST(Overlap_perf, Print_plan_gives_the_known_buckets_of_resnet50_and_needs_no_device) {
  const ToolEnd end = run_tool_to_end({"overlap_perf", "--trace", "resnet50", "--print-plan"},
                                      {{"NORIA_IBVERBS", "/nowhere/lib.so"}});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(end.err, "");
  std::vector<std::string> bytes;
  for (const std::string& line : lines_of(end.out))
    bytes.push_back(line.substr(0, line.rfind(' ')));
  EXPECT_EQ(bytes, (std::vector<std::string>{"0 8196000", "1 31502336", "2 26255360", "3 26550272",
                                             "4 9724160"}));
}

TEST(Overlap_perf, Print_plan_obeys_the_caps) {
  // ResNet-18 with a cap of 35 MiB, whose buckets were seen on real machines.
  const ToolEnd end = run_tool_to_end(
      {"overlap_perf", "--trace", "resnet18", "--print-plan", "--bucket-mib", "35"});
  const auto lines = lines_of(end.out);
  ASSERT_EQ(lines.size(), 3U);
  EXPECT_TRUE(lines[0].starts_with("0 2052000 "));
  EXPECT_TRUE(lines[1].starts_with("1 38297600 "));
  EXPECT_TRUE(lines[2].starts_with("2 6408448 "));

  // A larger first bucket.  Expect: it holds more, and the whole stays the whole.
  const auto larger =
      lines_of(run_tool_to_end({"overlap_perf", "--trace", "resnet18", "--print-plan",
                                "--bucket-mib", "35", "--first-bucket-mib", "3"})
                   .out);
  uint64_t sum = 0;
  for (const std::string& line : larger) sum += std::stoull(line.substr(line.find(' ') + 1));
  EXPECT_EQ(sum, 46758048U);
  ASSERT_FALSE(larger.empty());
  EXPECT_GE(std::stoull(larger[0].substr(2)), 3U << 20);
}

TEST(Overlap_perf, A_strict_plan_exceeds_no_cap) {
  const ToolEnd end = run_tool_to_end({"overlap_perf", "--trace", "vgg16", "--print-plan", "--plan",
                                       "strict", "--last-bucket-mib", "2"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  uint64_t sum = 0, last = 0;
  for (const std::string& line : lines_of(end.out)) {
    last = std::stoull(line.substr(line.find(' ') + 1));
    EXPECT_LE(last, 25U << 20) << line;
    sum += last;
  }
  EXPECT_EQ(sum, 553430176U);
  EXPECT_LE(last, 2U << 20);
}

TEST(Overlap_perf, A_planned_plan_is_printed_without_a_rank) {
  const ToolEnd end = run_tool_to_end({"overlap_perf", "--trace", "gpt2", "--print-plan", "--plan",
                                       "planned", "--comm-ratio", "0.3"},
                                      {{"NORIA_IBVERBS", "/nowhere/lib.so"}});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(end.err, "");
  uint64_t sum = 0;
  for (const std::string& line : lines_of(end.out))
    sum += std::stoull(line.substr(line.find(' ') + 1));
  EXPECT_EQ(sum, 497759232U);
}

TEST_F(OverlapPerf, Every_plan_and_order_gives_right_sums) {
  for (const char* plan : {"ddp", "strict", "planned"})
    for (const char* order : {"reverse", "arrival"})
      for (const bool copies : {false, true}) {
        std::vector<std::string> flags{"-g",     "2",  "--mode",  "bucketed",
                                       "--plan", plan, "--order", order};
        if (copies) flags.emplace_back("--copy");
        const ToolEnd end = run(flags);
        EXPECT_EQ(end.exit_code, 0) << plan << " " << order << ": " << end.err;
      }
}

TEST_F(OverlapPerf, A_plan_is_saved_and_loaded) {
  const std::string plan = testing::TempDir() + "overlap_perf_test.plan";
  const std::vector<std::string> common{"-g", "2", "--mode", "bucketed"};
  std::vector<std::string> saves = common, loads = common;
  saves.insert(saves.end(), {"--plan", "planned", "--save-plan", plan});
  loads.insert(loads.end(), {"--load-plan", plan});
  EXPECT_EQ(run(saves).exit_code, 0);
  const ToolEnd end = run(loads);
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_NE(end.out.find("# Sealing the reducer took "), std::string::npos) << end.out;
  ::unlink(plan.c_str());
  const ToolEnd gone = run(loads);
  EXPECT_NE(gone.exit_code, 0);
  EXPECT_NE(gone.err.find("cannot open the plan"), std::string::npos) << gone.err;
}

TEST(Overlap_perf, Bad_input_is_one_line_and_exit_2) {
  for (const std::vector<std::string>& flags :
       std::vector<std::vector<std::string>>{{"--trace", "resnet51"},
                                             {"--mode", "bucket"},
                                             {"--mode", "bucketed,all-of-them"},
                                             {"--plan", "stric"},
                                             {"--comm-ratio", "0"},
                                             {"--comm-ratio", "1", "-g", "1"},
                                             {"--bucket-mb", "25"},
                                             {"--timeline", ""},
                                             {"--print-plan", "--load-plan", "absent"},
                                             {"--print-plan", "--save-plan", "unwritten"},
                                             {"--mode", "per-tensor", "--load-plan", "absent"},
                                             {"--mode", "sequential", "--save-plan", "unwritten"},
                                             {"--steps", "-1"}}) {
    std::vector<std::string> command{"overlap_perf"};
    command.insert(command.end(), flags.begin(), flags.end());
    const ToolEnd end = run_tool_to_end(command);
    EXPECT_EQ(end.exit_code, 2) << flags[0];
    EXPECT_EQ(lines_of(end.err).size(), 1U) << end.err;
    EXPECT_EQ(end.out, "");
  }
  // Expect: a plan that is not saved leaves no file.
  EXPECT_FALSE(std::ifstream("unwritten").good());
}

TEST(Overlap_perf, A_ratio_and_a_rate_contradict_each_other) {
  const ToolEnd end =
      run_tool_to_end({"overlap_perf", "--comm-ratio", "1"}, {{"NORIA_SOFT_RATE_GBIT", "10"}});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_NE(end.err.find("NORIA_SOFT_RATE_GBIT"), std::string::npos);
}

}  // namespace
}  // namespace noria::perf
