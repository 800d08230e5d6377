#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/params.hpp"
#include "tests/e2e/tool_runs.hpp"

namespace noria::perf {
namespace {

TEST(Noria_info, Shows_the_software_HCA_and_every_parameter) {
  const ToolEnd end = run_tool_to_end({"noria_info", "--json"},
                                      {{"NORIA_SOFT", "1"}, {"NORIA_QPS_PER_CONNECTION", "2"}});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  const auto json = nlohmann::json::parse(end.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << end.out;
  EXPECT_EQ(json["collectives"]["kind"], "software HCA");
  EXPECT_FALSE(json["collectives"]["ports"].empty());
  const auto rows = param_rows(Params{});
  ASSERT_EQ(json["parameters"].size(), rows.size());
  for (size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(json["parameters"][i]["name"], rows[i].name);
    const std::string name = rows[i].name;
    const bool set =
        name == "NORIA_SOFT" || name == "NORIA_QPS_PER_CONNECTION" || name == "NORIA_SOCKET_IFNAME";
    EXPECT_EQ(json["parameters"][i]["is_default"], !set) << name;
  }
}

TEST(Noria_info, Text_names_the_library_and_the_parameters) {
  const ToolEnd end = run_tool_to_end({"noria_info"}, {{"NORIA_SOFT", "1"}});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_NE(end.out.find("libnoria-softverbs.so (software HCA)"), std::string::npos) << end.out;
  EXPECT_NE(end.out.find("\n* NORIA_SOFT "), std::string::npos) << "what is set is marked";
  EXPECT_NE(end.out.find("\n  NORIA_RING_FETCH "), std::string::npos);
}

TEST(Noria_info, Shows_where_a_value_comes_from) {
  const ToolEnd end = run_tool_to_end({"noria_info", "--json"}, {{"NORIA_SOFT", "1"},
                                                                 {"NCCL_IB_TC", "106"},
                                                                 {"NCCL_IB_SL", "1"},
                                                                 {"NORIA_SERVICE_LEVEL", "2"}});
  const auto json = nlohmann::json::parse(end.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << end.out << end.err;
  std::string seen;
  for (const auto& row : json["parameters"]) {
    const std::string name = row["name"];
    if (name == "NORIA_TRAFFIC_CLASS" || name == "NORIA_SERVICE_LEVEL" || name == "NORIA_PKEY")
      seen += name + " " + row["value"].get<std::string>() + " from " +
              row["source"].get<std::string>() + "; ";
  }
  EXPECT_EQ(seen,
            "NORIA_PKEY auto from default; NORIA_TRAFFIC_CLASS 106 from NCCL_IB_TC; "
            "NORIA_SERVICE_LEVEL 2 from NORIA_SERVICE_LEVEL; ");
}

TEST(Noria_info, A_device_that_is_not_there_is_named_with_those_that_are) {
  const ToolEnd end =
      run_tool_to_end({"noria_info"}, {{"NORIA_SOFT", "1"}, {"NCCL_IB_HCA", "=mlx5_9"}});
  EXPECT_EQ(end.exit_code, 3) << end.err;
  EXPECT_NE(end.out.find("none: NCCL_IB_HCA: '=mlx5_9' takes no port of "), std::string::npos)
      << end.out;
}

// What --check finds wrong, by name; and what it says of it.
std::string check(Environment environment, int expected_exit) {
  environment.emplace_back("NORIA_SOFT", "1");
  const ToolEnd end = run_tool_to_end({"noria_info", "--check", "--json"}, environment);
  EXPECT_EQ(end.exit_code, expected_exit) << end.out << end.err;
  const auto json = nlohmann::json::parse(end.out, nullptr, false);
  if (!json.is_object()) return end.out;
  std::string wrong;
  for (const auto& finding : json["check"])
    if (!finding["ok"])
      wrong +=
          finding["name"].get<std::string>() + ": " + finding["says"].get<std::string>() + "\n";
  return wrong;
}

TEST(Noria_info, Checks_a_machine_and_finds_nothing_wrong) {
  EXPECT_EQ(check({{"NCCL_NET_PLUGIN", "noria"}}, 0), "");
  const ToolEnd end = run_tool_to_end({"noria_info", "--check"}, {{"NORIA_SOFT", "1"}});
  EXPECT_EQ(end.exit_code, 0);
  for (const std::string& line : lines_of(end.out))
    EXPECT_TRUE(line.starts_with("ok     ")) << line;
  for (const char* part :
       {"variables", "library", "1 of 1 are active", "noria0 port 1: GID 0 ", "(RoCE v2)",
        "noria0 port 1: 4096 of 4096", "peers call at ", "memlock", "gpu", "nccl"})
    EXPECT_NE(end.out.find(part), std::string::npos) << part << " in " << end.out;
}

TEST(Noria_info, Checks_and_says_what_is_wrong) {
  EXPECT_EQ(check({{"NCCL_IB_SL", "16"}}, 3).find("variables: NCCL_IB_SL: '16' is not accepted"),
            0U);
  EXPECT_EQ(
      check({{"NORIA_IBVERBS", "/nowhere/lib.so"}}, 3).find("library: the NCCL plugin is off:"),
      0U);
  EXPECT_NE(check({{"NCCL_IB_HCA", "mlx5"}}, 3).find("NCCL_IB_HCA: 'mlx5' takes no port"),
            std::string::npos);
  EXPECT_NE(
      check({{"NORIA_ADDR_RANGE", "240.0.0.0/32"}}, 3).find("no GID lies in the address range"),
      std::string::npos);
  EXPECT_EQ(check({{"NORIA_DISABLE", "1"}}, 3),
            "variables: NORIA_DISABLE turns the NCCL plugin off\n");
  EXPECT_EQ(check({{"NORIA_SOCKET_IFNAME", "nosuch"}}, 3)
                .find("interface: the NCCL plugin is off: no interface fits: NORIA_SOCKET_IFNAME"),
            0U);
  EXPECT_EQ(check({{"NCCL_NET", "Socket"}}, 3), "nccl: NCCL_NET=Socket\n");
  EXPECT_EQ(check({{"NCCL_NET_PLUGIN", "none"}}, 3), "nccl: NCCL_NET_PLUGIN=none\n");
  EXPECT_EQ(check({{"NCCL_IB_DISABLE", "1"}}, 3), "nccl: NCCL_IB_DISABLE=1\n");
  const ToolEnd end =
      run_tool_to_end({"noria_info", "--check"}, {{"NORIA_SOFT", "1"}, {"NCCL_IB_DISABLE", "1"}});
  EXPECT_NE(end.out.find("\nWRONG  nccl       NCCL_IB_DISABLE=1: unset it"), std::string::npos)
      << end.out;
}

TEST(Noria_info, A_bad_variable_is_one_line_and_exit_2) {
  const ToolEnd end = run_tool_to_end({"noria_info"}, {{"NORIA_SOFT_COPPY", "cma"}});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_EQ(end.err,
            "noria_info: NORIA_SOFT_COPPY is not a variable of noria; the nearest is "
            "NORIA_SOFT_COPY\n");
}

TEST(Noria_info, A_root_without_a_port_is_one_line_and_exit_2) {
  for (const char* tool : {"noria_info", "all_reduce_perf"}) {
    const ToolEnd end = run_tool_to_end({tool}, {{"NORIA_ROOT", "nohost"}});
    EXPECT_EQ(end.exit_code, 2);
    EXPECT_EQ(end.err,
              std::string(tool) + ": NORIA_ROOT: 'nohost' is not accepted; it takes host:port\n");
  }
}

TEST(Noria_info, Shows_a_staged_node) {
  std::string node;
  for (int i = 0; i < 8; ++i)
    node += "name=mlx" + std::to_string(i) + ",rate=400,ll=ib,numa=" + std::to_string(i / 4) +
            ",pci=0000:1" + std::to_string(i) + ":00.0;";
  const ToolEnd end = run_tool_to_end(
      {"noria_info", "--json"},
      {{"NORIA_SOFT", "1"}, {"NORIA_SOFT_DEVICES", node}, {"XDG_RUNTIME_DIR", testing::TempDir()}});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  const auto json = nlohmann::json::parse(end.out, nullptr, false);
  ASSERT_TRUE(json.is_object()) << end.out;
  const auto& ports = json["collectives"]["ports"];
  ASSERT_EQ(ports.size(), 8U);
  EXPECT_EQ(ports[7]["device"], "mlx7");
  EXPECT_EQ(ports[7]["gbit"], 400);
  EXPECT_EQ(ports[7]["link"], "infiniband");
  EXPECT_EQ(ports[7]["numa"], 1);
  EXPECT_EQ(ports[0]["numa"], 0);
}

TEST(Noria_info, A_bad_description_of_devices_is_one_line_and_exit_2) {
  const ToolEnd end = run_tool_to_end({"noria_info"}, {{"NORIA_SOFT_DEVICES", "name=a,rate=401"}});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_EQ(lines_of(end.err).size(), 1U) << end.err;
  EXPECT_NE(end.err.find("NORIA_SOFT_DEVICES: device 1: rate=401"), std::string::npos) << end.err;
}

TEST(Noria_info, A_library_that_is_not_there_is_exit_3) {
  const ToolEnd end = run_tool_to_end({"noria_info"}, {{"NORIA_IBVERBS", "/nowhere/lib.so"}});
  EXPECT_EQ(end.exit_code, 3) << end.err;
  EXPECT_NE(end.out.find("/nowhere/lib.so"), std::string::npos) << end.out;
}

}  // namespace
}  // namespace noria::perf
