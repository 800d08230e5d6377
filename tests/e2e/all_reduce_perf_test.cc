#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/e2e/tool_runs.hpp"

namespace noria::perf {
namespace {

std::vector<std::vector<std::string>> rows_of(const std::string& out) {
  std::vector<std::vector<std::string>> rows;
  for (const std::string& line : lines_of(out)) {
    if (line.empty() || line[0] == '#') continue;
    std::istringstream words(line);
    rows.emplace_back(std::istream_iterator<std::string>(words),
                      std::istream_iterator<std::string>());
  }
  return rows;
}

TEST(All_reduce_perf, Two_ranks_give_a_table_of_right_results) {
  const ToolEnd end = run_tool_to_end(
      {"all_reduce_perf", "-g", "2", "-b", "8", "-e", "128K", "-f", "4", "-n", "5", "-w", "1"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_NE(end.out.find("# Out of bounds values : 0 OK\n"), std::string::npos) << end.out;
  EXPECT_NE(end.out.find("# Avg bus bandwidth    : "), std::string::npos);
  EXPECT_NE(end.out.find("\n# fetch: "), std::string::npos) << "how chunks are fetched is said";
  const auto rows = rows_of(end.out);
  ASSERT_EQ(rows.size(), 8U);  // 8, 32, ... 128K
  for (const auto& row : rows) {
    ASSERT_EQ(row.size(), 13U);
    EXPECT_EQ(row[8], "0");
    EXPECT_EQ(row[12], "0");
  }
  EXPECT_EQ(rows[7][0], "131072");
  EXPECT_EQ(rows[7][1], "32768");
}

TEST(All_reduce_perf, Three_ranks_are_right_for_every_type_and_reduction) {
  const ToolEnd end = run_tool_to_end({"all_reduce_perf", "-g", "3", "-b", "1000", "-e", "1000",
                                       "-n", "1", "-w", "0", "-c", "2", "-d", "all", "-o", "all"});
  EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
  EXPECT_EQ(rows_of(end.out).size(), 28U);  // 6 types x 5 reductions, less averages of 2 integers
}

TEST(All_reduce_perf, Queued_calls_are_right_too) {
  const ToolEnd end = run_tool_to_end(
      {"all_reduce_perf", "-g", "2", "-b", "64K", "-e", "64K", "-z", "0", "-n", "10"});
  EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
}

TEST(All_reduce_perf, One_rank_needs_no_device) {
  const ToolEnd end = run_tool_to_end({"all_reduce_perf", "-g", "1", "-b", "8", "-e", "8"},
                                      {{"NORIA_IBVERBS", "/nowhere/lib.so"}});
  EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
}

TEST(All_reduce_perf, Json_goes_alone_to_standard_output_or_to_a_file) {
  const std::string file = testing::TempDir() + "all_reduce_perf_test.json";
  const ToolEnd end = run_tool_to_end({"all_reduce_perf", "-g", "2", "-b", "1K", "-e", "4K", "-f",
                                       "2", "-n", "2", "--json", "-J", file});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  const auto json = nlohmann::json::parse(end.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << end.out;
  EXPECT_EQ(json["results"].size(), 3U);
  EXPECT_EQ(json["config"]["devices"].size(), 2U);
  EXPECT_EQ(json["out_of_bounds"]["count"], 0);
  std::ifstream written(file);
  EXPECT_EQ(nlohmann::json::parse(written, nullptr, false), json);
  ::unlink(file.c_str());
}

TEST(All_reduce_perf, The_device_carried_what_a_ring_must_carry) {
  for (const char* fetch : {"read", "message"})
    for (const int ranks : {2, 4}) {
      const ToolEnd end =
          run_tool_to_end({"all_reduce_perf", "-g", std::to_string(ranks), "-b", "1M", "-e", "1M",
                           "-n", "4", "-w", "0", "-c", "0", "--json"},
                          {{"NORIA_RING_FETCH", fetch}});
      const auto json = nlohmann::json::parse(end.out, nullptr, false);
      ASSERT_TRUE(json.is_object()) << end.err;
      EXPECT_EQ(json["fetch"], fetch);
      // Four calls out of place and four in place.  Expect: no less than 2(n-1)/n of each.
      const double least = 8.0 * (1 << 20) * 2 * (ranks - 1) / ranks;
      EXPECT_GE(json["sent_bytes"].get<double>(), least) << fetch << ' ' << ranks;
      EXPECT_GE(json["received_bytes"].get<double>(), least) << fetch << ' ' << ranks;
    }
}

TEST(All_reduce_perf, Bad_input_is_one_line_and_exit_2) {
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--minbites", "8"}, {"-g", "0"}, {"-d", "f8"}, {"x"}, {"-J", ""}}) {
    std::vector<std::string> command{"all_reduce_perf"};
    command.insert(command.end(), flags.begin(), flags.end());
    const ToolEnd end = run_tool_to_end(command);
    EXPECT_EQ(end.exit_code, 2) << flags[0];
    EXPECT_EQ(lines_of(end.err).size(), 1U) << end.err;
    EXPECT_EQ(end.out, "");
  }
}

TEST(All_reduce_perf, A_file_that_cannot_be_written_is_said_before_the_run) {
  const ToolEnd end = run_tool_to_end({"all_reduce_perf", "-g", "2", "-J", "/nowhere/x.json"});
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_EQ(end.out, "");
  EXPECT_EQ(end.err,
            "all_reduce_perf: /nowhere/x.json: cannot be written: No such file or directory\n");
}

TEST(All_reduce_perf, A_full_disk_is_said_once_and_exit_3) {
  const ToolEnd end =
      run_tool_to_end({"all_reduce_perf", "-g", "2", "-b", "8", "-e", "8", "-J", "/dev/full"});
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_EQ(end.err,
            "all_reduce_perf: rank 0: /dev/full: cannot be written: No space left on device\n");
}

TEST(All_reduce_perf, A_bad_variable_is_said_once_for_all_ranks) {
  const ToolEnd end =
      run_tool_to_end({"all_reduce_perf", "-g", "4"}, {{"NORIA_RING_FETCH", "reads"}});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_EQ(end.err,
            "all_reduce_perf: NORIA_RING_FETCH: 'reads' is not accepted; it takes "
            "auto|read|message\n");
}

TEST(All_reduce_perf, A_missing_verbs_library_is_exit_3) {
  const ToolEnd end = run_tool_to_end({"all_reduce_perf", "-g", "2", "-b", "8", "-e", "8"},
                                      {{"NORIA_IBVERBS", "/nowhere/lib.so"}});
  EXPECT_EQ(end.exit_code, 3) << end.err;
  EXPECT_NE(end.err.find("/nowhere/lib.so"), std::string::npos) << end.err;
}

// Runs for as long as the test lets it.
const std::vector<std::string> kEndless{"all_reduce_perf", "-g", "3", "-b", "1M", "-e", "1M", "-n",
                                        "10000000"};

TEST(All_reduce_perf, A_killed_rank_is_named_by_the_others_and_exit_4) {
  for (const size_t victim : {size_t{1}, size_t{0}}) {
    RunningTool tool(kEndless);
    ASSERT_TRUE(tool.prints("(elements)")) << "no table was begun";
    const std::vector<pid_t> ranks = tool.children();
    ASSERT_EQ(ranks.size(), 3U);
    ::kill(ranks[victim], SIGKILL);
    expect_named_by_all_others(tool.end(), "all_reduce_perf", 3, victim);
  }
}

TEST(All_reduce_perf, An_interrupt_ends_the_tool_and_its_ranks) {
  RunningTool tool(kEndless);
  ASSERT_TRUE(tool.prints("(elements)"));
  std::vector<int> watches;
  for (const pid_t pid : tool.children()) watches.push_back(watch_process(pid));
  ASSERT_EQ(watches.size(), 3U);
  ::kill(tool.pid(), SIGINT);
  EXPECT_EQ(tool.end().signal, SIGINT);
  for (const int watch : watches) EXPECT_TRUE(ends(watch));
}

TEST(All_reduce_perf, Ranks_die_with_a_killed_parent) {
  RunningTool tool(kEndless);
  ASSERT_TRUE(tool.prints("(elements)"));
  std::vector<int> watches;
  for (const pid_t pid : tool.children()) watches.push_back(watch_process(pid));
  ASSERT_EQ(watches.size(), 3U);
  ::kill(tool.pid(), SIGKILL);
  for (const int watch : watches) EXPECT_TRUE(ends(watch));
}

TEST(All_reduce_perf, Is_one_rank_of_a_job_that_torchrun_started) {
  const std::string port = std::to_string(free_port() - 29);
  const auto environment = [&](const char* rank) {
    return Environment{{"RANK", rank},
                       {"WORLD_SIZE", "2"},
                       {"LOCAL_RANK", rank},
                       {"MASTER_ADDR", "127.0.0.1"},
                       {"MASTER_PORT", port}};
  };
  const std::vector<std::string> command{"all_reduce_perf", "-b", "1K", "-e", "1K"};
  RunningTool zero(command, environment("0"));
  RunningTool one(command, environment("1"));
  const ToolEnd end_zero = zero.end();
  const ToolEnd end_one = one.end();
  EXPECT_EQ(end_zero.exit_code, 0) << end_zero.err;
  EXPECT_EQ(end_one.exit_code, 0) << end_one.err;
  EXPECT_EQ(rows_of(end_zero.out).size(), 1U) << end_zero.out;
  EXPECT_EQ(end_one.out, "");
}

TEST(All_reduce_perf, Is_one_rank_of_a_job_that_mpirun_started) {
  const ToolEnd end =
      run_tool_to_end({"/usr/bin/env", "mpirun", "--allow-run-as-root", "--oversubscribe", "-n",
                       "2", NORIA_BIN_DIR "all_reduce_perf", "-b", "1K", "-e", "1K"});
  if (end.exit_code == 127) GTEST_SKIP() << "mpirun is not installed";
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(rows_of(end.out).size(), 1U) << end.out;
  EXPECT_NE(end.out.find("#  Rank  1 "), std::string::npos) << end.out;
}

}  // namespace
}  // namespace noria::perf
