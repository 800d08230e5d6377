// noria_tune explain and buckets as a user runs them.
#include <gtest/gtest.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/e2e/tool_runs.hpp"

namespace noria::perf {
namespace {

using Json = nlohmann::json;

constexpr const char* kRow = "all_reduce,4M-64M,16,8,8,ib400,hopper,2.22-2.30,";

class TuneExplain : public testing::Test {
 protected:
  void TearDown() override { unlink(path_.c_str()); }
  void write(const std::string& rows) const { std::ofstream(path_) << "noria_table,1\n" << rows; }
  ToolEnd run(std::vector<std::string> flags) const {
    flags.insert(flags.begin(), {"noria_tune", "explain"});
    return run_tool_to_end(flags);
  }
  Json json(std::vector<std::string> flags) const {
    flags.insert(flags.end(), {"--nodes", "16", "--json"});
    const ToolEnd end = run(flags);
    EXPECT_EQ(end.exit_code, 0) << end.err;
    return Json::parse(end.out);
  }
  Json json_of_table(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> flags{"--bytes", "25MiB", "--table", path_};
    flags.insert(flags.end(), more.begin(), more.end());
    return json(flags);
  }
  std::string path_ = testing::TempDir() + "noria_tune_explain_" + std::to_string(getpid());
};

// The choice that stands out of the costs is the one of which they are least.
std::string least(const Json& costs, const char* whose) {
  const Json* found = nullptr;
  for (const Json& cost : costs)
    if (!cost[whose].is_null() && (found == nullptr || cost[whose] < (*found)[whose]))
      found = &cost;
  return found == nullptr ? "" : found->at("algorithm").get<std::string>();
}

TEST_F(TuneExplain, Without_a_row_NCCL_chooses_and_its_costs_stand) {
  write("");
  const Json answer = json_of_table();
  EXPECT_EQ(answer["reason"], "no_row");
  EXPECT_EQ(answer["nccl"], answer["noria"]);
  EXPECT_EQ(answer["nccl"]["algorithm"], least(answer["costs"], "nccl_us"));
  EXPECT_EQ(answer["costs"].size(), 21u);
  EXPECT_EQ(answer["ring"]["channels"], 8);
  EXPECT_TRUE(answer["row"].is_null());
}

TEST_F(TuneExplain, Names_the_row_that_counts_and_why_it_does) {
  // The row is first and NCCL's own choice has a prediction that is much slower.
  write(std::string(kRow) + "Ring,LL128,8,0,100,1,our cluster\n" + kRow +
        "NVLSTree,Simple,0,0,400,10,our cluster too\n");
  const Json ours = json_of_table();
  EXPECT_EQ(ours["reason"], "override");
  EXPECT_EQ(ours["noria"]["algorithm"], "Ring");
  EXPECT_EQ(ours["noria"]["channels"], 8);
  EXPECT_DOUBLE_EQ(ours["noria"]["us"].get<double>(), 125);
  EXPECT_EQ(ours["noria"]["us_source"], path_ + ":2");
  EXPECT_EQ(ours["row"]["provenance"], "our cluster");
  EXPECT_EQ(ours["nccl"]["algorithm"], "NVLSTree");
  EXPECT_DOUBLE_EQ(ours["nccl"]["us"].get<double>(), 650);
  EXPECT_EQ(least(ours["costs"], "noria_us"), "Ring");
  EXPECT_EQ(ours["rows"].size(), 2u);
  // Within max_regret NCCL's choice stands.
  write("max_regret,0.1\n" + std::string(kRow) + "Ring,LL128,0,0,100,1,a\n" + kRow +
        "NVLSTree,Simple,0,0,105,1,b\n");
  const Json stands = json_of_table();
  EXPECT_EQ(stands["reason"], "too_small_gain");
  EXPECT_EQ(stands["noria"]["algorithm"], "NVLSTree");
  EXPECT_EQ(stands["noria"]["us_source"], path_ + ":4");
  // Both choose the same.
  write(std::string(kRow) + "NVLSTree,Simple,0,0,-,-,b\n");
  const Json same = json_of_table();
  EXPECT_EQ(same["reason"], "same");
  EXPECT_EQ(same["noria"]["us_source"], "NCCL's model");
  // Whatever bytes the table has, JSON is JSON.
  write(std::string(kRow) + "NVLSTree,Simple,0,0,-,-,of \xff\n");
  EXPECT_EQ(json_of_table()["reason"], "same");
  // One that is modelled overrides nothing by itself.
  write(std::string(kRow) + "Ring,LL128,0,0,1,1,modelled\n");
  const Json modelled = json_of_table();
  EXPECT_EQ(modelled["reason"], "too_small_gain");
  EXPECT_NE(modelled["why"].get<std::string>().find("is modelled"), std::string::npos);
  EXPECT_EQ(modelled["noria"]["algorithm"], "NVLSTree");
  // What NCCL does not use stays unused.
  write(std::string(kRow) + "CollNetChain,Simple,0,0,1,1,b\n");
  EXPECT_EQ(json_of_table()["reason"], "no_row");
  EXPECT_EQ(json_of_table({"--collnet"})["noria"]["algorithm"], "CollNetChain");
  write(std::string(kRow) + "Ring,LL128,0,0,1,1,b\n");
  EXPECT_EQ(json_of_table({"--no-ll128"})["reason"], "no_row");
}

TEST_F(TuneExplain, Says_of_rows_that_do_not_fit_what_is_other) {
  write(std::string(kRow) + "Ring,LL,0,0,1,1,b\nall_gather,*,*,*,*,*,*,*,Ring,LL,0,0,1,1,x\n");
  const auto left_out = [&](std::vector<std::string> more) {
    const Json answer = json_of_table(more);
    return answer["rows_left_out"].dump();
  };
  EXPECT_NE(left_out({"--gpus", "4"}).find("\"other_communicator\":1"), std::string::npos);
  for (const std::vector<std::string>& other :
       std::vector<std::vector<std::string>>{{"--nics", "4"},
                                             {"--link", "200"},
                                             {"--link", "eth400"},
                                             {"--gpu", "b200"},
                                             {"--nccl", "2.19"}})
    EXPECT_NE(left_out(other).find("\"other_hardware\":1"), std::string::npos) << other[1];
  EXPECT_NE(left_out({}).find("\"other_collective\":1"), std::string::npos);
  const ToolEnd end = run({"--nodes", "16", "--bytes", "1K", "--table", path_});
  EXPECT_EQ(end.exit_code, 0);
  EXPECT_NE(
      end.out.find("why: no row fits: of 2, 1 are of other collectives, 0 for other hardware, "
                   "0 for other numbers of nodes or of ranks on them, 1 for other sizes"),
      std::string::npos)
      << end.out;
}

TEST_F(TuneExplain, Reads_what_the_plugin_reads_where_no_table_is_named) {
  const ToolEnd end = run({"--nodes", "2", "--bytes", "25MiB"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_NE(end.out.find("noria/tables/ib400-hopper8-8nics.csv:"), std::string::npos) << end.out;
  const ToolEnd off = run_tool_to_end({"noria_tune", "explain", "--nodes", "2", "--bytes", "25MiB"},
                                      {{"NORIA_TUNER", "0"}});
  EXPECT_NE(off.out.find("why: there is no table: NCCL chooses"), std::string::npos) << off.out;
}

TEST_F(TuneExplain, Tables_that_come_with_noria_have_a_row_for_every_all_reduce) {
  for (const char* nics : {"1", "4", "8"}) {
    for (const char* nodes : {"1", "2", "4", "8", "16", "32", "64"}) {
      for (const char* bytes : {"8", "1M", "25MiB", "16G"}) {
        const ToolEnd end = run({"--nodes", nodes, "--nics", nics, "--bytes", bytes, "--json"});
        ASSERT_EQ(end.exit_code, 0) << end.err;
        const Json answer = Json::parse(end.out);
        const std::string where =
            std::string(nodes) + " nodes, " + nics + " NICs, " + bytes + " bytes";
        EXPECT_FALSE(answer["row"].is_null()) << where;
        // Expect: who predicts the time of a bucket is a row, of what NCCL chooses too.
        if (std::string(bytes) == "25MiB") {
          EXPECT_NE(answer["noria"]["us_source"], "NCCL's model") << where;
        }
      }
    }
  }
}

TEST_F(TuneExplain, Takes_several_tables_and_the_one_of_the_environment) {
  write(std::string(kRow) + "Ring,LL128,0,0,1,1,second\n");
  const std::string first = path_ + "_first";
  std::ofstream(first) << "noria_table,1\n# a comment\n" << kRow << "Tree,LL,0,0,1,1,first\n";
  const Json both = json({"--bytes", "25MiB", "--table", first, "--table", path_});
  EXPECT_EQ(both["row"]["place"], first + ":3");
  EXPECT_EQ(both["rows"][1]["place"], path_ + ":2");
  unlink(first.c_str());
  const ToolEnd end = run_tool_to_end({"noria_tune", "explain", "--nodes", "16", "--bytes", "25M"},
                                      {{"NORIA_TUNER_TABLE", path_}});
  EXPECT_NE(end.out.find(path_ + ":2 is the first row that fits"), std::string::npos) << end.out;
}

TEST_F(TuneExplain, A_tables_constants_change_what_the_tuner_is_given) {
  write("constant,perChMaxNVLSTreeBws,2,2,1\n");
  const Json answer = json_of_table();
  EXPECT_EQ(answer["nccl"]["algorithm"], "NVLSTree");
  EXPECT_NE(answer["noria"]["algorithm"], "NVLSTree");
}

TEST_F(TuneExplain, Bad_usage_is_one_line_and_exit_2) {
  write("all_reduce,4M\n");
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--bytes", "1M"},
           {"--nodes", "2"},
           {"--nodes", "0", "--bytes", "1M"},
           {"--nodes", "1", "--gpus", "1", "--bytes", "1M"},
           {"--nodes", "2", "--bytes", "big"},
           {"--nodes", "2", "--bytes", "1M", "--coll", "sum"},
           {"--nodes", "2", "--bytes", "1M", "--gpu", "k80"},
           {"--nodes", "2", "--bytes", "1M", "--cpu", "z80"},
           {"--nodes", "2", "--bytes", "1M", "--link", "ib"},
           {"--nodes", "2", "--bytes", "1M", "--link", ""},
           {"--nodes", "2", "--bytes", "1M", "--nccl", "new"},
           {"--nodes", "2", "--bytes", "1M", "--table", ""},
           {"--nodes", "2", "--bytes", "1M", "--table", "/nowhere/x"},
           {"--nodes", "2", "--bytes", "1M", "--table", path_}}) {
    const ToolEnd end = run(flags);
    EXPECT_EQ(end.exit_code, 2);
    EXPECT_EQ(end.out, "");
    EXPECT_EQ(lines_of(end.err).size(), 1u) << end.err;
  }
}

// ---- buckets ------------------------------------------------------------------------------------

TEST(TuneBuckets, Shows_costs_crossovers_nodes_plans_and_the_best_schedule) {
  const ToolEnd end = run_tool_to_end(
      {"noria_tune", "buckets", "--trace", "gpt2", "--nodes", "64", "--backward-ms", "50"});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  for (const char* part : {"gpt2: 148 gradients", "an all-reduce there", "from this size on",
                           "25 MiB\n", "for the planner:", "planned ", "schedule of "})
    EXPECT_NE(end.out.find(part), std::string::npos) << part << "\n" << end.out;
  // The plan that ends first stands first: none below it ends earlier.
  double first = 0;
  bool is_in_plans = false;
  for (const std::string& line : lines_of(end.out)) {
    char name[32];
    char cap[32];
    double buckets = 0, largest = 0, end_ms = 0;
    if (line.rfind("plan ", 0) == 0) is_in_plans = true;
    if (line.empty()) is_in_plans = false;
    if (!is_in_plans || std::sscanf(line.c_str(), "%31s %31s %lf %lf %lf", name, cap, &buckets,
                                    &largest, &end_ms) != 5)
      continue;
    if (first == 0) first = end_ms;
    EXPECT_GE(end_ms, first);
    EXPECT_GE(end_ms, 50);
  }
  EXPECT_GT(first, 0);
}

TEST(TuneBuckets, Says_the_same_as_JSON) {
  const ToolEnd end =
      run_tool_to_end({"noria_tune", "buckets", "--trace", "gpt2", "--nodes", "64", "--json"});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  const Json json = Json::parse(end.out);
  EXPECT_EQ(json["gradients"], 148);
  EXPECT_EQ(json["all_reduce"].size(), 8u);
  EXPECT_EQ(json["nodes"].size(), 7u);
  EXPECT_EQ(json["nodes"].back()["nodes"], 64);
  EXPECT_EQ(json["crossovers"][0]["bytes"], 8);
  EXPECT_EQ(json["plans"].size(), 7u);
  EXPECT_EQ(json["plans"][0]["buckets"].back()["end_ms"], json["plans"][0]["end_ms"]);
}

TEST(TuneBuckets, Bad_usage_is_one_line_and_exit_2) {
  for (const std::vector<std::string>& flags : std::vector<std::vector<std::string>>{
           {"--nodes", "2"},
           {"--trace", "gpt2"},
           {"--trace", "gtp2", "--nodes", "2"},
           {"--trace", "gpt2", "--nodes", "2", "--backward-ms", "0"},
           {"--trace", "gpt2", "--nodes", "2", "--bytes", "1M"}}) {
    std::vector<std::string> command{"noria_tune", "buckets"};
    command.insert(command.end(), flags.begin(), flags.end());
    const ToolEnd end = run_tool_to_end(command);
    EXPECT_EQ(end.exit_code, 2);
    EXPECT_EQ(lines_of(end.err).size(), 1u) << end.err;
  }
}

TEST(ChoiceTime, Prints_a_row_a_table_length) {
  const ToolEnd end = run_tool_to_end({"choice_time", "--rounds", "1"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(lines_of(end.out).size(), 5u);
  EXPECT_EQ(run_tool_to_end({"choice_time", "--rounds", "0"}).exit_code, 2);
}

}  // namespace
}  // namespace noria::perf
