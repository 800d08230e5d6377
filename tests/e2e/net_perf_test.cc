// net_perf with noria's own plugin on the software HCA: both sides on this machine, and as server
// and client.

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include "base/fd.hpp"
#include "tests/e2e/tool_runs.hpp"

namespace noria::perf {
namespace {

using Words = std::vector<std::string>;

const Environment kSoft{{"NORIA_SOFT", "1"}, {"NORIA_SOCKET_IFNAME", "lo"}};

Words operator+(Words words, const Words& more) {
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

ToolEnd run_locally(const Words& flags, const Environment& environment = kSoft) {
  return run_tool_to_end(Words{"net_perf", "-g", "2"} + flags, environment);
}

// Rows below the header, as numbers.
std::vector<std::vector<double>> rows_of(const std::string& out) {
  std::vector<std::vector<double>> rows;
  bool is_below = false;
  for (const std::string& line : lines_of(out)) {
    if (is_below) {
      std::istringstream words(line);
      rows.emplace_back();
      for (double number = 0; words >> number;) rows.back().push_back(number);
    }
    is_below = is_below || line.find("#bytes") != std::string::npos;
  }
  return rows;
}

TEST(Net_perf, Bandwidth_of_a_size_is_a_row_of_perftests_columns) {
  const ToolEnd end = run_locally({"-s", "64K", "-n", "100"});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  EXPECT_EQ(end.err, "");
  EXPECT_NE(end.out.find("BW peak[MB/sec]    BW average[MB/sec]   MsgRate[Mpps]"),
            std::string::npos);
  const auto rows = rows_of(end.out);
  ASSERT_EQ(rows.size(), 1U) << end.out;
  ASSERT_EQ(rows[0].size(), 5U) << end.out;
  EXPECT_EQ(rows[0][0], 65536);
  EXPECT_EQ(rows[0][1], 100);
  EXPECT_GE(rows[0][2], rows[0][3]);
  EXPECT_NEAR(rows[0][3], rows[0][4] * 1e6 * 65536 / (1 << 20), 1);
}

TEST(Net_perf, All_sizes_are_23_rows_in_every_mode) {
  for (const Words& mode : {Words{"--test", "bw"}, Words{"--test", "lat"}, Words{"--test", "rate"},
                            Words{"-b", "--buffers", "8"}}) {
    const ToolEnd end = run_locally(mode + Words{"-a", "-n", "20"});
    ASSERT_EQ(end.exit_code, 0) << end.err;
    const auto rows = rows_of(end.out);
    ASSERT_EQ(rows.size(), 23U) << end.out;
    EXPECT_EQ(rows.front()[0], 2);
    EXPECT_EQ(rows.back()[0], 8 << 20);
    for (const auto& row : rows) EXPECT_EQ(row[1], 20) << end.out;
  }
}

TEST(Net_perf, Several_connections_carry_their_messages_side_by_side) {
  for (const Words& mode : {Words{}, Words{"-b"}, Words{"-D", "0.05"}}) {
    const Words length = mode == Words{"-D", "0.05"} ? Words{} : Words{"-n", "30"};
    const ToolEnd end = run_locally(mode + length + Words{"-q", "4", "-s", "4K"});
    ASSERT_EQ(end.exit_code, 0) << end.err;
    const auto rows = rows_of(end.out);
    ASSERT_EQ(rows.size(), 1U) << end.out;
    // Expect: as perftest, all of them.
    if (!length.empty()) {
      EXPECT_EQ(rows[0][1], 120) << end.out;
    } else {
      EXPECT_GT(rows[0][1], 0) << end.out;
    }
    EXPECT_NE(end.out.find("# 4 connections, of each 8 in flight"), std::string::npos) << end.out;
  }
}

TEST(Net_perf, Latency_is_ordered_from_least_to_most) {
  const ToolEnd end = run_locally({"--test", "lat", "-n", "500"});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  const auto rows = rows_of(end.out);
  ASSERT_EQ(rows.size(), 1U) << end.out;
  ASSERT_EQ(rows[0].size(), 9U) << end.out;
  const auto& row = rows[0];  // bytes, iterations, min, max, typical, avg, stdev, 99 %, 99.9 %
  EXPECT_EQ(row[0], 8);
  EXPECT_EQ(row[1], 500);
  EXPECT_GT(row[2], 0);
  EXPECT_LE(row[2], row[4]);
  EXPECT_LE(row[4], row[7]);
  EXPECT_LE(row[7], row[8]);
  EXPECT_LE(row[8], row[3]);
}

TEST(Net_perf, A_duration_and_one_message_in_flight_end_by_themselves) {
  for (const Words& mode : {Words{"--test", "bw", "-b"}, Words{"--test", "lat"}}) {
    const ToolEnd end = run_locally(mode + Words{"-s", "4K", "-D", "0.05", "-t", "1"});
    ASSERT_EQ(end.exit_code, 0) << end.err;
    EXPECT_GT(rows_of(end.out).at(0).at(1), 0) << end.out;
  }
}

TEST(Net_perf, A_duration_ends_between_two_messages_that_are_large) {
  for (const Words& mode : {Words{"--test", "bw"}, Words{"--test", "lat"}}) {
    const ToolEnd end = run_locally(mode + Words{"-s", "64M", "-D", "0.01", "-t", "1"});
    ASSERT_EQ(end.exit_code, 0) << end.err;
    // Expect: a look at the clock after each; 64 take no machine a hundredth of a second.
    EXPECT_LT(rows_of(end.out).at(0).at(1), 64) << end.out;
  }
}

TEST(Net_perf, Every_table_of_the_plugin_can_be_chosen_and_the_highest_is_taken) {
  for (int version = 6; version <= 12; ++version) {
    const ToolEnd end =
        run_locally({"--abi", std::to_string(version), "-s", "64", "-n", "10", "--json"});
    ASSERT_EQ(end.exit_code, 0) << end.err;
    EXPECT_EQ(nlohmann::json::parse(end.out)["plugin"]["version"], version);
  }
  const ToolEnd end = run_locally({"-s", "64", "-n", "10", "--json"});
  const auto json = nlohmann::json::parse(end.out);
  EXPECT_EQ(json["plugin"]["version"], 12);
  EXPECT_EQ(json["plugin"]["name"], "noria");
  EXPECT_EQ(json["device"]["name"], "noria0");
  ASSERT_EQ(json["rows"].size(), 1U);
  EXPECT_EQ(json["rows"][0]["iterations"], 10);
}

TEST(Net_perf, A_device_is_chosen_by_index_or_name) {
  Environment two = kSoft;
  two.emplace_back("NORIA_SOFT_DEVICES", "name=mlx0,rate=400;name=mlx1,rate=200");
  for (const char* device : {"1", "mlx1"}) {
    const ToolEnd end = run_locally({"-d", device, "-n", "10", "--json"}, two);
    ASSERT_EQ(end.exit_code, 0) << end.err;
    EXPECT_EQ(nlohmann::json::parse(end.out)["device"]["name"], "mlx1");
  }
  const ToolEnd end = run_locally({"-d", "mlx2"}, two);
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_EQ(end.err, "net_perf: -d: there is no device 'mlx2'; there are 0 (mlx0), 1 (mlx1)\n");
}

// ---- server and client --------------------------------------------------------------------------

struct Server {
  explicit Server(const Words& flags = {})
      : port(std::to_string(free_port())), tool(Words{"net_perf", "-p", port} + flags, kSoft) {
    EXPECT_TRUE(tool.prints("waits for a client"));
  }
  Words client(const Words& flags) const {
    return Words{"net_perf", "127.0.0.1", "-p", port} + flags;
  }
  std::string port;
  RunningTool tool;
};

TEST(Net_perf, A_server_takes_the_clients_flags) {
  Server server;
  const ToolEnd client =
      run_tool_to_end(server.client({"--test", "lat", "-n", "50", "-s", "16"}), kSoft);
  EXPECT_EQ(client.exit_code, 0) << client.err;
  EXPECT_EQ(rows_of(client.out).at(0).at(1), 50);
  const ToolEnd end = server.tool.end();
  EXPECT_EQ(end.exit_code, 0) << end.err;
}

TEST(Net_perf, A_server_that_was_given_other_flags_refuses_and_both_name_them) {
  Server server({"-s", "64"});
  const ToolEnd client = run_tool_to_end(server.client({"-s", "8"}), kSoft);
  const std::string why =
      "-s: the server was given \"64\", the client has \"8\"; leave it out at the server, or give "
      "both the same\n";
  EXPECT_EQ(client.exit_code, 2);
  EXPECT_EQ(client.err, "net_perf: the server: " + why);
  const ToolEnd end = server.tool.end();
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_EQ(end.err, "net_perf: " + why);
}

// Says this to the server, and stays connected for as long as the result lives.
Fd say(const std::string& port, const std::string& words) {
  Fd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET,
                      .sin_port = htons(static_cast<uint16_t>(std::stoi(port))),
                      .sin_addr = {htonl(INADDR_LOOPBACK)},
                      .sin_zero = {}};
  EXPECT_EQ(::connect(socket.get(), reinterpret_cast<sockaddr*>(&address), sizeof address), 0);
  EXPECT_EQ(::send(socket.get(), words.data(), words.size(), MSG_NOSIGNAL),
            static_cast<ssize_t>(words.size()));
  return socket;
}

// In a frame of net_perf's.
std::string framed(const std::string& text, uint32_t kind = 0, uint32_t code = 0) {
  const uint32_t header[]{0x6e706631, kind, code, static_cast<uint32_t>(text.size())};
  return std::string(reinterpret_cast<const char*>(header), sizeof header) + text;
}

// The server refused so many with a line each, and then served the right one.
void expect_served(Server& server, size_t refused, const std::string& why) {
  const ToolEnd client = run_tool_to_end(server.client({"-n", "10"}), kSoft);
  EXPECT_EQ(client.exit_code, 0) << client.err;
  const ToolEnd end = server.tool.end();
  EXPECT_EQ(end.exit_code, 0) << end.err << ", signal " << end.signal;
  const std::vector<std::string> lines = lines_of(end.err);
  EXPECT_EQ(lines.size(), refused) << end.err;
  for (const std::string& line : lines) {
    EXPECT_EQ(line.find("net_perf: the client at "), 0U) << line;
    EXPECT_NE(line.find(why + "; waits for another"), std::string::npos) << line;
  }
}

TEST(Net_perf, A_server_waits_on_after_a_client_that_asks_for_what_cannot_be) {
  const nlohmann::json good{{"test", "bw"},      {"size", "64"},   {"all_sizes", false},
                            {"iterations", 10u}, {"seconds", 0.0}, {"is_bidirectional", false},
                            {"depth", 8u},       {"buffers", 1u},  {"connections", 1u}};
  const std::pair<const char*, nlohmann::json> bad[] = {
      {"test", "write"},   {"size", "many"},  {"size", "2G"},     {"iterations", -1},
      {"seconds", 1e300},  {"seconds", -1.0}, {"depth", 0u},      {"depth", 257u},
      {"buffers", 0u},     {"buffers", 257u}, {"buffers", "one"}, {"connections", 0u},
      {"connections", 65u}};
  Server server;
  std::vector<Fd> clients;
  for (const auto& [key, value] : bad) {
    nlohmann::json terms = good;
    terms[key] = value;
    clients.push_back(say(server.port, framed(terms.dump())));
  }
  // Expect:
  expect_served(server, clients.size(), " is a net_perf of another version");
}

TEST(Net_perf, A_server_waits_on_after_strangers) {
  Server server;
  const Fd rubbish = say(server.port, "GET / HTTP/1.1\r\n\r\n");
  const Fd larger_than_any = say(server.port, std::string("1fpn") + std::string(12, '\xff'));
  expect_served(server, 2, " is another program, or one of another version");
}

TEST(Net_perf, A_server_waits_on_after_who_fails_before_it_asks) {
  Server server;
  const Fd failed = say(server.port, framed("no device", 1, 2));
  expect_served(server, 1, ": no device");
}

TEST(Net_perf, A_server_waits_on_after_who_says_nothing_or_half_a_word) {
  {
    Server server;
    say(server.port, "");
    expect_served(server, 1, " is gone; its own output says why, if it had time to");
  }
  Server server;
  const Fd silent = say(server.port, "");
  const Fd half = say(server.port, framed("{\"test\"").substr(0, 20));
  expect_served(server, 2, " has not answered; does it still run?");
}

TEST(Net_perf, Without_a_server_the_client_ends_with_4) {
  const std::string port = std::to_string(free_port());
  const ToolEnd end = run_tool_to_end({"net_perf", "127.0.0.1", "-p", port}, kSoft);
  EXPECT_EQ(end.exit_code, 4);
  EXPECT_EQ(end.err, "net_perf: cannot connect to 127.0.0.1:" + port +
                         ": Connection refused; is net_perf running there, without a host's "
                         "name?\n");
}

TEST(Net_perf, A_killed_peer_ends_the_other_side_with_4) {
  for (const char* test : {"bw", "lat"}) {
    // The process that the tool forked.
    RunningTool local({"net_perf", "-g", "2", "--test", test, "-D", "60"}, kSoft);
    ASSERT_TRUE(local.prints("#bytes"));
    ASSERT_EQ(local.children().size(), 1U);
    ::kill(local.children()[0], SIGKILL);
    const ToolEnd end = local.end();
    EXPECT_EQ(end.exit_code, 4) << end.err;
    EXPECT_EQ(lines_of(end.err).size(), 1U) << end.err;

    // The client; its server is left.
    Server server;
    {
      RunningTool client(server.client({"--test", test, "-D", "60"}), kSoft);
      ASSERT_TRUE(client.prints("#bytes"));
    }
    const ToolEnd left = server.tool.end();
    EXPECT_EQ(left.exit_code, 4) << left.err;
    EXPECT_EQ(lines_of(left.err).size(), 1U) << left.err;
  }
}

// ---- what cannot start --------------------------------------------------------------------------

TEST(Net_perf, A_library_that_is_no_plugin_is_exit_2) {
  ToolEnd end = run_locally({"--plugin", "/nowhere/libnccl-net-x.so"});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_NE(end.err.find("net_perf: --plugin: /nowhere/libnccl-net-x.so: cannot open"),
            std::string::npos)
      << end.err;

  end = run_locally({"--plugin", NORIA_NO_PLUGIN_FILE});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_EQ(end.err, "net_perf: --plugin: " NORIA_NO_PLUGIN_FILE
                     " is no net plugin: it has none of ncclNetPlugin_v6 to _v12\n");
}

TEST(Net_perf, A_plugin_by_name_is_the_one_beside_the_tool) {
  const ToolEnd end = run_locally({"--plugin", "noria", "-n", "10"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
}

TEST(Net_perf, A_plugin_without_a_device_is_exit_3_with_its_own_reason) {
  Environment off = kSoft;
  off.emplace_back("NORIA_IBVERBS", "/nowhere/libibverbs.so");
  const ToolEnd end = run_locally({"--plugin", NORIA_NET_PLUGIN_FILE}, off);
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_EQ(end.err.find("net_perf: " NORIA_NET_PLUGIN_FILE " shows no device: noria is off: "), 0U)
      << end.err;
  EXPECT_EQ(lines_of(end.err).size(), 1U) << end.err;
}

TEST(Net_perf, A_plugin_that_is_off_for_a_setting_is_exit_3_with_its_own_reason) {
  // Not told to use the software HCA, which would be off for the same.
  for (const auto& [name, value] :
       {std::pair{"NORIA_DISABLE", "1"}, std::pair{"NORIA_SOCKET_IFNAME", "nosuchif"}}) {
    const ToolEnd end = run_tool_to_end({"net_perf", "-g", "2"}, {{name, value}});
    EXPECT_EQ(end.exit_code, 3);
    EXPECT_NE(end.err.find(" shows no device: noria is off: "), std::string::npos) << end.err;
    EXPECT_NE(end.err.find(name), std::string::npos) << end.err;
    EXPECT_EQ(lines_of(end.err).size(), 1U) << end.err;
  }
}

TEST(Net_perf, Bad_flags_are_one_line_and_exit_2) {
  const std::vector<std::pair<Words, std::string>> cases{
      {{"-n", "5", "-D", "1"}, "-n and -D exclude each other"},
      {{"-s", "8", "-a"}, "-s and -a exclude each other"},
      {{"-g", "2", "host"}, "-g and HOST exclude each other"},
      {{"-g", "2", "-b", "--test", "lat"}, "-b: a latency test goes both ways by itself"},
      {{"-g", "2", "-q", "2", "--test", "lat"}, "-q: a latency test has one message under way"},
      {{"--iter", "5"}, "--iter is not a flag of this tool; the nearest is --iters"}};
  for (const auto& [flags, text] : cases) {
    const ToolEnd end = run_tool_to_end(Words{"net_perf"} + flags, kSoft);
    EXPECT_EQ(end.exit_code, 2);
    EXPECT_EQ(end.err, "net_perf: " + text + "\n");
  }
  for (const Words& flags :
       {Words{"--test", "write"}, Words{"-s", "0"}, Words{"-t", "257"}, Words{"--abi", "5"}}) {
    const ToolEnd end = run_locally(flags);
    EXPECT_EQ(end.exit_code, 2);
    EXPECT_EQ(lines_of(end.err).size(), 1U) << end.err;
  }
}

}  // namespace
}  // namespace noria::perf
