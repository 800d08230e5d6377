// Programs that know nothing of noria run on the software HCA to a clean end: those of rdma-core
// and of perftest, each between two processes, started by noria_soft as a user starts them.
//
// perftest does not look at the bytes that it moves: this test shows that programs meet a device
// they can use, the other conformance tests that it moves the right bytes. Nothing is asserted of
// speed.
#include <sstream>

#include "tests/support/foreign_pair.hpp"

namespace noria::perf {
namespace {

// ---- rdma-core ----------------------------------------------------------------------------------

TEST(Foreign_rdma_core, Ibv_devices_lists_the_device) {
  NORIA_SKIP_WITHOUT("ibv_devices");
  const ToolEnd end = run_tool_to_end({"noria_soft", "ibv_devices"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  EXPECT_NE(end.out.find("noria0"), std::string::npos) << end.out;
}

TEST(Foreign_rdma_core, Ibv_devinfo_shows_all_it_can_ask) {
  NORIA_SKIP_WITHOUT("ibv_devinfo");
  const ToolEnd end = run_tool_to_end({"noria_soft", "ibv_devinfo", "-v"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  for (const char* text : {"hca_id:\tnoria0", "PORT_ACTIVE (4)", "link_layer:\t\tEthernet",
                           "active_width:\t\t4X (2)", "100.0 Gbps (128)", "RoCE v2"})
    EXPECT_NE(end.out.find(text), std::string::npos) << text << " is not in\n" << end.out;
}

TEST(Foreign_rdma_core, Ibv_devinfo_shows_described_devices) {
  NORIA_SKIP_WITHOUT("ibv_devinfo");
  const ToolEnd end =
      run_tool_to_end({"noria_soft", "ibv_devinfo", "-v", "-d", "mlx1"},
                      {{"NORIA_SOFT_DEVICES", "name=mlx0;name=mlx1,rate=200,ll=ib,host=a"},
                       {"XDG_RUNTIME_DIR", testing::TempDir()}});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  for (const char* text : {"hca_id:\tmlx1", "link_layer:\t\tInfiniBand", "50.0 Gbps (64)"})
    EXPECT_NE(end.out.find(text), std::string::npos) << text << " is not in\n" << end.out;
}

TEST(Foreign_rdma_core, Ibv_rc_pingpong_compares_what_it_moved) {
  NORIA_SKIP_WITHOUT("ibv_rc_pingpong");
  for (const bool sleeps : {false, true}) {
    std::vector<std::string> words{"ibv_rc_pingpong", "-g", "0", "-n", "100", "-c"};
    if (sleeps) words.emplace_back("-e");
    const Ends ends = run_pair_of(words);
    EXPECT_EQ(ends.server.exit_code, 0) << ends.server.out << ends.server.err;
    EXPECT_EQ(ends.client.exit_code, 0) << ends.client.out << ends.client.err;
    EXPECT_NE(ends.client.out.find("100 iters in"), std::string::npos) << ends.client.out;
    EXPECT_EQ(ends.server.out.find("invalid data"), std::string::npos) << ends.server.out;
  }
}

// ---- perftest -----------------------------------------------------------------------------------

struct Run {
  const char* name;
  const char* words;
  uint64_t bytes = 65536;
  uint64_t iterations = 200;  // as the program counts them
};

class ForeignPerftest : public testing::TestWithParam<Run> {};

// The numbers of the row under the "#bytes" line.
std::vector<double> numbers_of(const std::string& out) {
  const auto lines = lines_of(out);
  for (size_t i = 0; i + 1 < lines.size(); ++i) {
    if (lines[i].find("#bytes") == std::string::npos) continue;
    std::istringstream row(lines[i + 1]);
    std::vector<double> numbers;
    for (double number = 0; row >> number;) numbers.push_back(number);
    return numbers;
  }
  return {};
}

TEST_P(ForeignPerftest, Ends_well_on_both_sides_with_numbers) {
  std::vector<std::string> words = words_of(GetParam().words);
  NORIA_SKIP_WITHOUT(words.front());
  // What it says of the processor's clock is not our business.
  words.emplace_back("-F");
  const Ends ends = run_pair_of(words);
  EXPECT_EQ(ends.server.exit_code, 0) << ends.server.out << ends.server.err;
  EXPECT_EQ(ends.client.exit_code, 0) << ends.client.out << ends.client.err;

  // Expect: size, count, then speeds or times, all of which are more than nothing.
  const auto numbers = numbers_of(ends.client.out);
  ASSERT_GE(numbers.size(), 4U) << ends.client.out;
  EXPECT_EQ(numbers[0], static_cast<double>(GetParam().bytes));
  EXPECT_EQ(numbers[1], static_cast<double>(GetParam().iterations));
  EXPECT_GT(numbers[3], 0) << ends.client.out;
}

INSTANTIATE_TEST_SUITE_P(
    Each, ForeignPerftest,
    testing::Values(Run{"write_bw", "ib_write_bw -n 200"},
                    Run{"write_bw_post_list", "ib_write_bw -n 256 -l 16 -s 64", 64, 256},
                    Run{"write_bw_queues", "ib_write_bw -n 200 -q 4", 65536, 800},
                    Run{"write_bw_both_ways", "ib_write_bw -n 200 -b"},
                    Run{"write_bw_inline", "ib_write_bw -n 200 -I 64 -s 64", 64},
                    Run{"write_lat", "ib_write_lat -n 200 -s 8", 8},
                    Run{"send_bw", "ib_send_bw -n 200"},
                    Run{"send_bw_events", "ib_send_bw -n 200 -e"},
                    Run{"send_bw_both_ways", "ib_send_bw -n 200 -b -q 2", 65536, 400},
                    Run{"send_bw_post_list", "ib_send_bw -n 256 -l 8 -s 256", 256, 256},
                    Run{"send_lat", "ib_send_lat -n 200 -s 8", 8},
                    Run{"send_lat_inline", "ib_send_lat -n 200 -s 64 -I 64", 64},
                    Run{"send_lat_events", "ib_send_lat -n 200 -s 8 -e", 8},
                    Run{"read_bw", "ib_read_bw -n 200"},
                    Run{"read_bw_queues_both_ways", "ib_read_bw -n 200 -q 2 -b", 65536, 400},
                    Run{"read_lat", "ib_read_lat -n 200 -s 8", 8},
                    Run{"atomic_bw", "ib_atomic_bw -n 200", 8},
                    Run{"atomic_lat", "ib_atomic_lat -n 200", 8},
                    Run{"send_bw_shared_receives", "ib_send_bw -n 200 -q 2 --use-srq", 65536, 400}),
    [](const auto& suite) { return std::string(suite.param.name); });

}  // namespace
}  // namespace noria::perf
