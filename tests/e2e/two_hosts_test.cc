// Whole programs on two hosts that share no memory: network namespaces with wires between them.
#include <gtest/gtest.h>
#include <unistd.h>

#include "tests/e2e/tool_runs.hpp"
#include "tests/support/two_hosts.hpp"

namespace noria::perf {
namespace {

constexpr uint16_t kPort = 4711;  // both networks are empty: every port is free

struct Ends {
  ToolEnd first, second;
};

class Two_hosts : public testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "network namespaces want root";
    ASSERT_EQ(hosts.failure(), "");
  }

  // A program of perftest that listens on host 0, and its client on host 1.
  Ends run_perftest(std::vector<std::string> words, const Environment& environment = {}) {
    words.insert(words.begin(), NORIA_BIN_DIR "noria_soft");
    words.insert(words.end(), {"-p", std::to_string(kPort)});
    RunningTool server(hosts.on(0, words), environment);
    EXPECT_TRUE(hosts.comes_to_listen(0, kPort));
    words.push_back(hosts.address(0));
    Ends ends;
    ends.second = run_tool_to_end(hosts.on(1, words), environment);
    ends.first = server.end();
    return ends;
  }

  // A rank of all_reduce_perf on each host.
  Ends run_ranks(std::vector<std::string> words, Environment environment) {
    words.insert(words.begin(), NORIA_BIN_DIR "all_reduce_perf");
    environment.insert(environment.end(), {{"NORIA_SOFT", "1"}, {"WORLD_SIZE", "2"}});
    Environment first = environment, second = environment;
    first.emplace_back("RANK", "0");
    second.emplace_back("RANK", "1");
    RunningTool rank0(hosts.on(0, words), first);
    Ends ends;
    ends.second = run_tool_to_end(hosts.on(1, words), second);
    ends.first = rank0.end();
    return ends;
  }

  void give_first_network_one_address(const std::string& name) {
    for (int host = 0; host < 2; ++host) {
      const ToolEnd end = run_tool_to_end(hosts.on(
          host, {"/bin/sh", "-c",
                 "ip link set wire0 down && ip link set wire0 name " + name +
                     " && ip addr flush dev " + name + " && ip addr add 10.99.0.1/24 dev " + name +
                     " && ip link set " + name + " up"}));
      ASSERT_EQ(end.exit_code, 0) << end.err;
    }
  }

  TwoHosts hosts{2};
};

void expect_well(const Ends& ends) {
  EXPECT_EQ(ends.first.exit_code, 0) << ends.first.out << ends.first.err;
  EXPECT_EQ(ends.second.exit_code, 0) << ends.second.out << ends.second.err;
}

TEST_F(Two_hosts, Perftest_runs_between_them) {
  for (const char* program : {"ib_write_bw", "ib_send_bw", "ib_read_bw"})
    expect_well(run_perftest({program, "-n", "200", "-s", "65536", "-x", "0", "-F"}));
}

TEST_F(Two_hosts, Ranks_that_are_told_where_rank_0_is_reduce_right) {
  const Ends ends = run_ranks({"-b", "8", "-e", "256K", "-f", "8", "-n", "3", "-w", "1"},
                              {{"NORIA_ROOT", hosts.address(0) + ":" + std::to_string(kPort)},
                               {"NORIA_SOCKET_IFNAME", "wire0"}});
  expect_well(ends);
  EXPECT_NE(ends.first.out.find("# Out of bounds values : 0 OK\n"), std::string::npos)
      << ends.first.out;
}

TEST_F(Two_hosts, Ranks_under_the_variables_of_torchrun_reduce_right) {
  expect_well(run_ranks({"-b", "64K", "-e", "64K", "-n", "3", "-w", "1"},
                        {{"MASTER_ADDR", hosts.address(0)},
                         {"MASTER_PORT", std::to_string(kPort)},
                         {"NORIA_SOCKET_IFNAME", "wire0"}}));
}

TEST_F(Two_hosts, With_the_first_network_of_host_0_dead_the_other_one_serves) {
  hosts.cut(0);
  ASSERT_EQ(hosts.failure(), "");
  // Host 1 has both networks still, and finds what it is told.
  const Ends ends = run_ranks({"-b", "64K", "-e", "64K", "-n", "3", "-w", "1"},
                              {{"NORIA_ROOT", hosts.address(0, 1) + ":" + std::to_string(kPort)},
                               {"NORIA_SOCKET_IFNAME", "wire1"}});
  expect_well(ends);
}

TEST_F(Two_hosts,
       With_one_address_on_the_first_network_of_both_the_interface_that_is_named_serves) {
  give_first_network_one_address("wire0");
  expect_well(run_ranks({"-b", "64K", "-e", "64K", "-n", "3", "-w", "1"},
                        {{"NORIA_ROOT", hosts.address(0, 1) + ":" + std::to_string(kPort)},
                         {"NORIA_SOCKET_IFNAME", "wire1"}}));
}

TEST_F(Two_hosts, With_one_address_on_a_bridge_of_containers_the_next_interface_serves) {
  give_first_network_one_address("docker0");
  expect_well(run_ranks({"-b", "64K", "-e", "64K", "-n", "3", "-w", "1"},
                        {{"NORIA_ROOT", hosts.address(0, 1) + ":" + std::to_string(kPort)},
                         {"NORIA_SOCKET_IFNAME", ""}}));
}

TEST_F(Two_hosts, A_root_on_a_dead_network_is_an_error_that_names_it) {
  hosts.cut(0);
  ASSERT_EQ(hosts.failure(), "");
  const std::string root = hosts.address(0) + ":" + std::to_string(kPort);
  const ToolEnd end =
      run_tool_to_end(hosts.on(1, {NORIA_BIN_DIR "all_reduce_perf", "-b", "8", "-e", "8"}),
                      {{"NORIA_SOFT", "1"},
                       {"NORIA_ROOT", root},
                       {"RANK", "1"},
                       {"WORLD_SIZE", "2"},
                       {"NORIA_SOCKET_IFNAME", "wire0"},
                       {"NORIA_START_TIMEOUT_MS", "2000"}});
  EXPECT_EQ(end.exit_code, 4) << end.out << end.err;
  EXPECT_NE(end.err.find(root), std::string::npos) << end.err;
}

TEST_F(Two_hosts, A_wire_that_is_cut_under_load_is_an_error_within_the_bound) {
  const std::vector<std::string> words{
      NORIA_BIN_DIR "noria_soft", "ib_write_bw", "-s", "65536", "-D", "40", "-F", "-x", "0", "-p",
      std::to_string(kPort)};
  RunningTool server(hosts.on(0, words));
  ASSERT_TRUE(hosts.comes_to_listen(0, kPort));
  std::vector<std::string> to_server = words;
  to_server.push_back(hosts.address(0));
  RunningTool client(hosts.on(1, to_server));
  ASSERT_TRUE(hosts.has_moved(64 << 20)) << "it does not come to write";
  hosts.cut(0);
  ASSERT_EQ(hosts.failure(), "");
  const ToolEnd end = client.end();
  // Expect: it says why, and has not waited for the whole 40 s and more.
  EXPECT_GT(end.exit_code, 0) << end.out << end.err;
  EXPECT_NE((end.out + end.err).find("status 12"), std::string::npos) << end.out << end.err;
}

}  // namespace
}  // namespace noria::perf
