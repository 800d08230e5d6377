#include "perf/nccl_json_log.hpp"

#include <gtest/gtest.h>

#include "perf/exit_codes.hpp"
#include "perf/log_fault.hpp"
#include "perf/nccl_tests_json.hpp"

namespace noria::perf {
namespace {

// As nccl-tests lays it out, with numbers of our own.
const std::string kRun = R"({
  "version": 3,
  "start_time": "2026-11-30T12:00:00Z",
  "args": ["/opt/nccl-tests/all_reduce_perf_mpi", "-b", "4096", "\"size\": 1"],
  "env": ["NCCL_ALGO=Ring", "NCCL_PROTO=Simple", "NCCL_DEBUG=WARN"],
  "nccl_version": 23007,
  "config": {"nthreads": 1, "ngpus": 1, "devices": [
    {"rank": 0, "group": 0, "pid": 11, "hostname": "north", "device": 0,
     "device_hex": "0x1b", "device_info": "NVIDIA Made Up 1"},
    {"rank": 1, "group": 0, "pid": 12, "hostname": "south", "device": 0,
     "device_hex": "0x1b", "device_info": "NVIDIA Made Up 1"}]},
  "results": [
    {"size": 4096, "count": 1024, "type": "float", "redop": "sum", "root": -1,
     "out_of_place": {"time": 21.5, "alg_bw": 0.19, "bus_bw": 0.19, "nwrong": 0, "p50_us": 21.0},
     "in_place": {"time": 22.25, "alg_bw": 0.18, "bus_bw": 0.18, "nwrong": null},
     "actual_iterations": 20, "experiment_name": ""},
    {"size": 8192, "count": 2048, "type": "float", "redop": "sum", "root": -1,
     "out_of_place": null, 
     "in_place": {"cpu_time": 30, "alg_bw": 0.27, "bus_bw": 0.27, "nwrong": 3}}],
  "out_of_bounds": {"count": 0, "okay": true},
  "average_bus_bandwidth": {"bandwidth": 0.2, "okay": "unchecked"},
  "errors": [], "end_time": "2026-11-30T12:00:09Z"
}
)";

std::string refusal(const std::string& text) {
  try {
    static_cast<void>(parse_nccl_tests_json(text, "a.json"));
  } catch (const ToolError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    return error.what();
  }
  return "";
}

TEST(Nccl_json_log, A_run_gives_the_rows_and_facts_that_its_text_gives) {
  const NcclTestsLog log = parse_nccl_log("\n " + kRun, "a.json");
  ASSERT_EQ(log.tables.size(), 1u);
  const LoggedTable& table = log.tables[0];
  EXPECT_EQ(table.collective, "all_reduce");
  EXPECT_EQ(table.ranks, 2u);
  EXPECT_EQ(table.nodes, 2u);
  EXPECT_EQ(table.gpu, "NVIDIA Made Up 1");
  EXPECT_EQ(table.nccl_version, "2.30.7");
  EXPECT_EQ(table.algorithm, "Ring");
  EXPECT_EQ(table.protocol, "Simple");
  EXPECT_TRUE(table.has_end);
  ASSERT_EQ(table.rows.size(), 2u);
  const LoggedRow& row = table.rows[0];
  EXPECT_EQ(row.bytes, 4096u);
  EXPECT_EQ(row.count, 1024u);
  EXPECT_EQ(row.type, "float");
  EXPECT_EQ(row.redop, "sum");
  EXPECT_EQ(row.root, "-1");
  EXPECT_EQ(row.line, 14u);
  EXPECT_EQ(row.out_of_place.time_us, "21.5");
  EXPECT_EQ(row.out_of_place.algbw, "0.19");
  EXPECT_EQ(row.out_of_place.wrong, "0");
  EXPECT_EQ(row.in_place.wrong, "N/A");
  EXPECT_FALSE(table.rows[1].out_of_place.is_there());
  EXPECT_EQ(table.rows[1].in_place.time_us, "30");
  EXPECT_EQ(fault_of(table, log), "line 18 has wrong results");
}

TEST(Nccl_json_log, What_norias_own_bench_writes_is_read_too) {
  BenchOptions options;
  options.arguments = {"build/bin/all_gather_perf"};
  Row row{.bytes = 64, .count = 16, .type = "float", .op = "none"};
  row.out_of_place = {.time_us = 2.5, .algbw = 1, .busbw = 0.5, .wrong = 0};
  row.in_place = row.out_of_place;
  const noria_comm_info info{};
  const std::string text = nccl_tests_json(
      {"all_gather_perf", options, {{0, 1, "a", "d"}, {1, 2, "a", "d"}}, info, {row}, "2026", 100});
  const NcclTestsLog log = parse_nccl_tests_json(text, "b.json");
  EXPECT_EQ(log.tables[0].collective, "all_gather");
  EXPECT_EQ(log.tables[0].ranks, 2u);
  EXPECT_EQ(log.tables[0].nodes, 1u);
  EXPECT_EQ(log.tables[0].rows[0].out_of_place.time_us, "2.5");
  EXPECT_EQ(fault_of(log.tables[0], log), "");
}

TEST(Nccl_json_log, A_file_that_was_cut_off_is_refused_with_the_line) {
  for (size_t length = 1; length + 2 < kRun.size(); length += 7) {
    const std::string text = refusal(kRun.substr(0, length));
    EXPECT_TRUE(text.starts_with("a.json:")) << length << " " << text;
    EXPECT_NE(text.find("is not whole"), std::string::npos) << length << " " << text;
  }
  EXPECT_EQ(refusal("{\n\n\"a\": nonsense}"), "a.json:3: is no JSON from here on");
  EXPECT_EQ(refusal("{\n\"a\": 1,\n\"b\": 2e999}"), "a.json:3: '2e999' is too large a number");
}

TEST(Nccl_json_log, Devices_without_a_host_do_not_make_a_node) {
  std::string text = kRun;
  for (const std::string host : {"\"hostname\": \"north\", ", "\"hostname\": \"south\", "})
    text.replace(text.find(host), host.size(), "");
  const NcclTestsLog log = parse_nccl_tests_json(text, "a.json");
  // Expect: the number of nodes is not known.
  EXPECT_EQ(log.tables[0].nodes, 0u);
  EXPECT_EQ(log.tables[0].ranks, 2u);
}

TEST(Nccl_json_log, JSON_of_something_else_is_refused) {
  EXPECT_EQ(refusal("{}"), "a.json:1: is JSON without results[] of nccl-tests");
  EXPECT_EQ(refusal("{\"results\": []}"), "a.json:1: is JSON without results[] of nccl-tests");
  EXPECT_EQ(refusal("{\"results\": [\n1]}"), "a.json:1: results[0] has no size or no type");
  EXPECT_EQ(refusal("{\"results\":\n[{\"size\": -3, \"type\": \"float\"}]}"),
            "a.json:2: results[0] has no size or no type");
  // Values of other kinds are absent.
  const NcclTestsLog log = parse_nccl_tests_json(
      "{\"args\": 1, \"env\": {\"a\": 2}, \"config\": [], \"nccl_version\": \"2.29.3\", "
      "\"results\": [{\"size\": 8, \"type\": \"float\", \"root\": \"x\", \"in_place\": 3}]}",
      "a.json");
  EXPECT_EQ(log.tables[0].nccl_version, "2.29.3");
  EXPECT_EQ(log.tables[0].collective, "");
  EXPECT_FALSE(log.tables[0].has_end);
  EXPECT_FALSE(log.tables[0].rows[0].in_place.is_there());
}

}  // namespace
}  // namespace noria::perf
