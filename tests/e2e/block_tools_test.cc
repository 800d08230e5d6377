// reduce_scatter_perf and all_gather_perf: what differs from all_reduce_perf, whose body they have.

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/e2e/tool_runs.hpp"

namespace noria::perf {
namespace {

nlohmann::json run_json(std::vector<std::string> command) {
  command.emplace_back("--json");
  const ToolEnd end = run_tool_to_end(command);
  EXPECT_EQ(end.exit_code, 0) << end.err;
  return nlohmann::json::parse(end.out, nullptr, false);
}

class BlockToolTest : public testing::TestWithParam<const char*> {
 protected:
  std::string tool() const { return std::string(GetParam()) + "_perf"; }
  bool reduces() const { return GetParam() == std::string("reduce_scatter"); }
};
INSTANTIATE_TEST_SUITE_P(Tools, BlockToolTest, testing::Values("reduce_scatter", "all_gather"),
                         [](const auto& tool) { return std::string(tool.param); });

TEST_P(BlockToolTest, Results_are_right_for_every_type_and_reduction) {
  std::vector<std::string> command{tool(), "-g", "3", "-b", "1000", "-e", "1000", "-n",
                                   "1",    "-w", "0", "-c", "2",    "-d", "all"};
  if (reduces()) command.insert(command.end(), {"-o", "all"});
  const auto json = run_json(command);
  ASSERT_TRUE(json.is_object());
  EXPECT_EQ(json["out_of_bounds"]["count"], 0);
  // 6 types x 5 reductions, less averages of 2 integers; a gather has all 10
  // types and no reduction.
  EXPECT_EQ(json["results"].size(), reduces() ? 28U : 10U);
  EXPECT_EQ(json["results"][0]["redop"], reduces() ? "sum" : "none");
}

TEST_P(BlockToolTest, Rows_count_as_those_of_nccl_tests) {
  // 1000 floats over 3 ranks: blocks of 332, a multiple of 16 bytes.
  const auto row =
      run_json({tool(), "-g", "3", "-b", "4000", "-e", "4000", "-n", "1"})["results"][0];
  EXPECT_EQ(row["count"], 332);
  EXPECT_EQ(row["size"], 3 * 332 * 4);
  EXPECT_EQ(row["root"], -1);
  const auto& half = row["out_of_place"];
  EXPECT_NEAR(half["bus_bw"].get<double>(), half["alg_bw"].get<double>() * 2 / 3, 1e-9);

  // Less than 16 bytes a rank: nothing to move, and no fault.
  EXPECT_EQ(run_json({tool(), "-g", "2", "-b", "8", "-e", "8", "-n", "1"})["results"][0]["size"],
            0);
}

TEST_P(BlockToolTest, The_device_carried_half_of_an_all_reduce_and_no_more) {
  for (const int ranks : {2, 4}) {
    const auto json = run_json({tool(), "-g", std::to_string(ranks), "-b", "1M", "-e", "1M", "-n",
                                "4", "-w", "0", "-c", "0"});
    // Four calls out of place and four in place.
    const double data = 8.0 * (1 << 20) * (ranks - 1) / ranks;
    for (const char* way : {"sent_bytes", "received_bytes"}) {
      EXPECT_GE(json[way].get<double>(), data) << way << ' ' << ranks;
      EXPECT_LE(json[way].get<double>(), data * 1.05 + 65536) << way << ' ' << ranks;
    }
  }
}

TEST_P(BlockToolTest, Queued_calls_are_right_too) {
  const auto json =
      run_json({tool(), "-g", "2", "-b", "1M", "-e", "1M", "-z", "0", "-n", "10", "-c", "1"});
  EXPECT_EQ(json["out_of_bounds"]["count"], 0);
}

TEST(Block_tools, A_reduction_of_a_gather_and_a_type_that_is_not_reduced_are_refused) {
  const ToolEnd op = run_tool_to_end({"all_gather_perf", "-o", "max"});
  EXPECT_EQ(op.exit_code, 2);
  EXPECT_NE(op.err.find("this collective reduces nothing"), std::string::npos) << op.err;
  const ToolEnd type = run_tool_to_end({"reduce_scatter_perf", "-d", "uint8"});
  EXPECT_EQ(type.exit_code, 2);
  EXPECT_NE(type.err.find("'uint8' is not accepted"), std::string::npos) << type.err;
}

}  // namespace
}  // namespace noria::perf
