#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <sstream>

#include "tests/e2e/tool_runs.hpp"

namespace noria::perf {
namespace {

TEST(Compare_perftest, Prints_a_row_for_each_program_and_appends_them_to_a_file) {
  const std::string file = testing::TempDir() + "compare_perftest_test.md";
  ::unlink(file.c_str());
  const ToolEnd end = run_tool_to_end({"compare_perftest", "--sizes", "256K", "--rounds", "1",
                                       "--seconds", "0.01", "--results", file});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  for (const char* row :
       {"\n| ib_write_bw | 262144 | ", "\n| ib_write_bw | 64 | ", "\n| ib_write_bw -l 16 | 64 | ",
        "\n| ib_write_lat | 8 | ", "\n| ib_send_lat | 8 | ", "\n| transport_bw | 262144 | ",
        "\n| transport_bw over TCP | 262144 | ", "\n| all_reduce_perf | 8 | "})
    EXPECT_NE(end.out.find(row), std::string::npos) << row << " is not in:\n" << end.out;
  std::ostringstream written;
  written << std::ifstream(file).rdbuf();
  EXPECT_EQ(written.str(), "\n## " + end.out);
  ::unlink(file.c_str());
}

TEST(Compare_perftest, A_server_does_not_outlive_its_client) {
  const std::string folder = testing::TempDir() + "compare_perftest_" + std::to_string(::getpid());
  ::mkdir(folder.c_str(), 0700);
  const std::string program = folder + "/ib_send_lat", file = folder + "/server";
  std::ofstream(program) << "#!/bin/sh\nfor last; do :; done\n[ $last != 127.0.0.1 ] || exit 1\n"
                         << "echo $$ >" << file << "\nexec sleep 1000\n";
  ::chmod(program.c_str(), 0700);
  const ToolEnd end = run_tool_to_end(
      {"compare_perftest", "--only", "ib_send_lat", "--rounds", "1", "--seconds", "0.01"},
      {{"PATH", folder + ":" NORIA_BIN_DIR ":/usr/bin:/bin"}});
  EXPECT_EQ(end.exit_code, 3);
  EXPECT_NE(end.err.find("ib_send_lat -F -s 8"), std::string::npos) << end.err;
  pid_t server = 0;
  std::ifstream(file) >> server;
  ASSERT_GT(server, 0);
  EXPECT_EQ(::kill(server, 0), -1);
  EXPECT_EQ(errno, ESRCH);
  ::unlink(program.c_str());
  ::unlink(file.c_str());
  ::rmdir(folder.c_str());
}

TEST(Compare_perftest, Bad_input_is_one_line_and_exit_2) {
  ToolEnd end = run_tool_to_end({"compare_perftest", "--round", "5"});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_EQ(end.err,
            "compare_perftest: --round is not a flag of this tool; the nearest is --rounds\n");

  end = run_tool_to_end({"compare_perftest", "--only", "ib_read"});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_EQ(end.err, "compare_perftest: --only: no program's name contains 'ib_read'\n");
}

TEST(Transport_bw, Prints_how_many_messages_a_second_it_carried) {
  const ToolEnd end =
      run_tool_to_end({"noria_soft", "transport_bw", "--bytes", "1M", "--messages", "100"},
                      {{"PATH", NORIA_BIN_DIR ":/usr/bin:/bin"}});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_GT(std::stod(end.out), 0);
}

TEST(Transport_bw, A_receiver_sends_away_who_asks_for_something_else_and_serves_the_next) {
  const Environment environment{{"PATH", NORIA_BIN_DIR ":/usr/bin:/bin"},
                                {"NORIA_SOCKET_IFNAME", "lo"}};
  const std::string port = std::to_string(free_port());
  const auto words = [&](const char* side, const char* messages) {
    return std::vector<std::string>{"noria_soft", "transport_bw", side,    "-p",
                                    port,         "--messages",   messages};
  };
  RunningTool receiver(words("--serve", "20"), environment);
  ASSERT_TRUE(receiver.prints("waits for a sender"));
  const ToolEnd stranger = run_tool_to_end(words("127.0.0.1", "10"), environment);
  const ToolEnd sender = run_tool_to_end(words("127.0.0.1", "20"), environment);
  // Expect: both sides name what each has, and the right one is served.
  EXPECT_EQ(stranger.exit_code, 4) << stranger.err;
  EXPECT_EQ(sender.exit_code, 0) << sender.err;
  const ToolEnd end = receiver.end();
  EXPECT_EQ(end.exit_code, 0) << end.err;
  for (const std::string& said : {stranger.err, end.err}) {
    EXPECT_NE(said.find("--messages 10 "), std::string::npos) << said;
    EXPECT_NE(said.find("--messages 20 "), std::string::npos) << said;
  }
}

TEST(Transport_bw, A_sender_without_a_receiver_says_what_has_to_run_there) {
  const ToolEnd end = run_tool_to_end({"transport_bw", "127.0.0.1", "-p", "1"});
  EXPECT_EQ(end.exit_code, 4);
  EXPECT_EQ(end.err,
            "transport_bw: cannot connect to 127.0.0.1:1: Connection refused; is transport_bw "
            "--serve running there?\n");
}

}  // namespace
}  // namespace noria::perf
