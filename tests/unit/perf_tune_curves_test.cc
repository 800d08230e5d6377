#include "perf/tune_curves.hpp"

#include <gtest/gtest.h>

#include "perf/exit_codes.hpp"

namespace noria::perf {
namespace {

using plugin::tuner::Algorithm;
using plugin::tuner::Collective;
using plugin::tuner::Protocol;

LoggedRow row(uint64_t bytes, const std::string& us) {
  LoggedRow made{.bytes = bytes, .count = bytes, .type = "int8"};
  made.out_of_place = {us, "1", "1", "0"};
  made.in_place = made.out_of_place;
  return made;
}

LoggedTable table(std::vector<LoggedRow> rows) {
  return {.collective = "all_reduce",
          .rows = std::move(rows),
          .ranks = 16,
          .nodes = 2,
          .gpu = "NVIDIA H100",
          .algorithm = "Ring",
          .protocol = "Simple",
          .has_end = true,
          .line = 7};
}

NamedLog log_of(LoggedTable one, const std::string& file = "a.log") {
  return {file, {.tables = {std::move(one)}}};
}

std::string refusal(const std::vector<NamedLog>& logs, const Assumed& assumed = {}) {
  try {
    static_cast<void>(read_curves(logs, assumed));
  } catch (const ToolError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    return error.what();
  }
  return "";
}

TEST(Tune_curves, Tables_of_one_choice_are_one_curve_with_both_halves) {
  const Measured measured = read_curves(
      {log_of(table({row(8, "20"), row(16, "21")})), log_of(table({row(8, "20")}), "b.log")}, {});
  ASSERT_EQ(measured.curves.size(), 1u);
  const Curve& curve = measured.curves[0];
  EXPECT_EQ(curve.key.algorithm, Algorithm::ring);
  EXPECT_EQ(curve.key.protocol, Protocol::simple);
  EXPECT_EQ(curve.key.nodes, 2u);
  EXPECT_EQ(curve.key.ranks_per_node, 8u);
  EXPECT_EQ(curve.times.size(), 6u);
  EXPECT_EQ(curve.sources, (std::vector<std::string>{"a.log table 1", "b.log table 1"}));
  EXPECT_EQ(text_of(curve.key), "all_reduce Ring/Simple, 2 nodes of 8");
}

TEST(Tune_curves, What_NCCL_says_of_a_row_counts_before_the_variables_and_these_before_the_flags) {
  LoggedTable one = table({row(8, "20"), row(16, "21"), row(32, "22")});
  one.algorithm = "";
  one.protocol = "LL";
  one.rows[0].algorithm = "TREE";
  one.rows[0].protocol = "LL128";
  one.rows[1].algorithm = "Unknown";
  const Measured measured = read_curves({log_of(one)}, {.protocol = Protocol::simple});
  ASSERT_EQ(measured.curves.size(), 2u);
  EXPECT_EQ(text_of(measured.curves[0].key), "all_reduce by NCCL's choice/LL, 2 nodes of 8");
  EXPECT_EQ(text_of_communicator(measured.curves[0].key), "all_reduce, 2 nodes of 8");
  EXPECT_EQ(text_of(measured.curves[1].key), "all_reduce Tree/LL128, 2 nodes of 8");
}

TEST(Tune_curves, NCCLs_own_words_and_numbers_of_a_choice_are_known) {
  const auto choice_of = [](const char* algorithm, const char* protocol) {
    LoggedTable one = table({row(8, "20")});
    one.algorithm = one.protocol = "";
    one.rows[0].algorithm = algorithm;
    one.rows[0].protocol = protocol;
    return text_of(read_curves({log_of(one)}, {}).curves[0].key);
  };
  EXPECT_EQ(choice_of("NVLS_TREE", "SIMPLE"), "all_reduce NVLSTree/Simple, 2 nodes of 8");
  EXPECT_EQ(choice_of("COLLNET_CHAIN", "SIMPLE"), "all_reduce CollNetChain/Simple, 2 nodes of 8");
  EXPECT_EQ(choice_of("1", "2"), "all_reduce Ring/Simple, 2 nodes of 8");
  EXPECT_EQ(choice_of("0", "1"), "all_reduce Tree/LL128, 2 nodes of 8");
  EXPECT_EQ(choice_of("7", "3"), "all_reduce by NCCL's choice, 2 nodes of 8");
}

TEST(Tune_curves, Variables_that_leave_several_leave_the_choice_open_and_others_out) {
  const auto key_of = [](const char* algorithm, const char* protocol, const Assumed& assumed = {},
                         const char* collective = "all_reduce") {
    LoggedTable one = table({row(8, "20")});
    one.algorithm = algorithm;
    one.protocol = protocol;
    one.collective = collective;
    return read_curves({log_of(one)}, assumed).curves[0].key;
  };
  const CurveKey some = key_of("Ring,Tree", "^LL");
  EXPECT_EQ(text_of(some), "all_reduce by NCCL's choice of some, 2 nodes of 8");
  EXPECT_FALSE(some.is_free());
  EXPECT_TRUE(key_of("", "").is_free());
  EXPECT_EQ(key_of("^NVLS", "").cells & cells_of(Algorithm::nvls, {}), 0u);
  // One is left.
  EXPECT_EQ(text_of(key_of("allreduce:ring;broadcast:tree", "^LL,LL128")),
            "all_reduce Ring/Simple, 2 nodes of 8");
  EXPECT_EQ(key_of("Ring", "^LL128").protocol, std::nullopt);
  EXPECT_NE(key_of("Ring", "^LL128").cells, kAllCells);
  EXPECT_EQ(key_of("Ring", "").cells, kAllCells);
  // The flags choose of what is left, and of nothing else.
  EXPECT_EQ(key_of("Ring,NVLSTree", "", {.algorithm = Algorithm::nvls_tree}).protocol,
            Protocol::simple);
  EXPECT_EQ(key_of("Ring", "", {.algorithm = Algorithm::tree}).algorithm, Algorithm::ring);
  // What NCCL does not have was something else.
  EXPECT_EQ(key_of("Tree", "LL", {}, "all_gather").algorithm, Algorithm::ring);
  EXPECT_EQ(key_of("NVLS", "LL", {}, "reduce").algorithm, Algorithm::ring);
  EXPECT_TRUE(key_of("Tree", "Rubbish", {}, "all_gather").is_free());
  // All that NCCL has is what it has by itself.
  EXPECT_TRUE(key_of("", "", {}, "broadcast").is_free());
  EXPECT_TRUE(key_of("Ring", "", {}, "broadcast").is_free());
}

TEST(Tune_curves, Where_NCCL_has_one_algorithm_or_one_protocol_alone_that_is_the_choice) {
  LoggedTable one = table({row(8, "20")});
  one.algorithm = "";
  one.protocol = "LL128";
  one.collective = "all_gather";
  EXPECT_EQ(read_curves({log_of(one)}, {}).curves[0].key.algorithm, Algorithm::ring);
  one.protocol = "Simple";  // and NVLS, PAT, CollNet
  EXPECT_FALSE(read_curves({log_of(one)}, {}).curves[0].key.algorithm);
  one.collective = "broadcast";
  EXPECT_EQ(read_curves({log_of(one)}, {}).curves[0].key.algorithm, Algorithm::ring);
}

TEST(Tune_curves, A_GPU_is_known_by_its_name) {
  EXPECT_EQ(gpu_of("NVIDIA H100 80GB HBM3"), plugin::tuner::Gpu::hopper);
  EXPECT_EQ(gpu_of("Tesla V100-SXM2-16GB"), plugin::tuner::Gpu::volta);
  EXPECT_EQ(gpu_of("NVIDIA GH200 120GB"), plugin::tuner::Gpu::hopper);
  EXPECT_EQ(gpu_of("GB200"), plugin::tuner::Gpu::blackwell);
  EXPECT_FALSE(gpu_of("GeForce RTX 3090"));
}

TEST(Tune_curves, What_the_tuner_is_not_asked_about_is_left_out_with_a_word) {
  LoggedTable other = table({row(8, "20")}), nameless = other;
  other.collective = "alltoall";
  nameless.collective = "";
  LoggedTable empty = table({row(0, "5"), row(8, "N/A"), row(8, "1e+99"), row(UINT64_MAX, "5")});
  const Measured measured = read_curves({log_of(other), log_of(nameless, "b"), log_of(empty)}, {});
  EXPECT_TRUE(measured.curves.empty());
  EXPECT_EQ(measured.left_out,
            (std::vector<std::string>{"a.log:7: the tuner is not asked about alltoall",
                                      "b:7: the log does not name its program; give --coll"}));
  EXPECT_EQ(
      read_curves({log_of(nameless)}, {.collective = Collective::reduce}).curves[0].key.collective,
      Collective::reduce);
  Measured one_size = read_curves({log_of(table({row(8, "20")}))}, {});
  EXPECT_TRUE(fit_curves(&one_size).empty());
  EXPECT_EQ(one_size.left_out,
            std::vector<std::string>{"a.log table 1: all_reduce Ring/Simple, 2 nodes of 8 was "
                                     "measured at one size, and a line takes two"});
}

TEST(Tune_curves, What_is_not_to_be_trusted_is_refused_with_file_line_and_reason) {
  EXPECT_EQ(refusal({{"a.log", {}}}), "a.log:1: has no row of nccl-tests from here to its end");
  LoggedTable cut = table({row(8, "20")});
  cut.has_end = false;
  EXPECT_EQ(refusal({log_of(cut)}),
            "a.log:7: a table is not to be trusted: it ends without its average: cut off, or the "
            "program died");
  LoggedTable where = table({row(8, "20")});
  where.ranks = where.nodes = 0;
  EXPECT_EQ(refusal({log_of(where)}),
            "a.log:7: the log does not say how many nodes and ranks there were; give --nodes and "
            "--ranks-per-node");
  EXPECT_EQ(refusal({log_of(where)}, {.ranks_per_node = 8}),
            "a.log:7: the log does not say how many nodes there were; give --nodes");
  EXPECT_EQ(refusal({log_of(where)}, {.nodes = 2}),
            "a.log:7: the log does not say how many ranks there were; give --ranks-per-node");
  EXPECT_EQ(refusal({log_of(where)}, {.nodes = 2, .ranks_per_node = 8}), "");
  LoggedTable uneven = table({row(8, "20")});
  uneven.ranks = 15;
  EXPECT_EQ(refusal({log_of(uneven)}), "a.log:7: 15 ranks on 2 nodes: not as many on each");
  LoggedTable gpu = table({row(8, "20")});
  gpu.gpu = "NVIDIA A100";
  EXPECT_EQ(
      refusal({log_of(table({row(8, "20")})), log_of(gpu, "b.log")}),
      "b.log:7: is of NVIDIA A100, and what was read before of NVIDIA H100: a table is of one "
      "cluster, fit each alone");
  EXPECT_EQ(refusal({log_of(table({row(8, "20")})), log_of(table({row(8, "50")}), "b.log")}),
            "b.log:7: all_reduce Ring/Simple, 2 nodes of 8 takes 2.50 times as long here as in "
            "a.log table 1: other clusters, or other settings? fit each alone");
}

TEST(Tune_curves, A_fit_says_how_far_it_is_off) {
  LoggedTable once = table(
      {row(8, "20"), row(1024, "20"), row(1 << 20, "30"), row(1 << 21, "40"), row(1 << 22, "90")});
  for (LoggedRow& each : once.rows) each.in_place = {};
  Measured measured = read_curves({log_of(once)}, {});
  const std::vector<FittedCurve> fitted = fit_curves(&measured);
  ASSERT_EQ(fitted.size(), 1u);
  EXPECT_LT(fitted[0].residual, 0.05);
  EXPECT_EQ(fitted[0].worst_bytes, 1u << 22);
  EXPECT_NEAR(fitted[0].worst, 0.33, 0.05);
  ASSERT_TRUE(fitted[0].left_out);
  EXPECT_LT(*fitted[0].left_out, 0.15);
}

TEST(Tune_curves, A_curve_holds_around_its_sizes_and_not_where_they_are_far_apart) {
  using plugin::tuner::Range;
  const auto held = [](std::vector<uint64_t> sizes) {
    std::vector<TimedSize> times;
    for (const uint64_t bytes : sizes) times.push_back({bytes, 1});
    return held_by(times);
  };
  constexpr uint64_t kMiB = 1 << 20;
  EXPECT_EQ(held({}), std::vector<Range>());
  EXPECT_EQ(held({16 * kMiB}), (std::vector<Range>{{11776 * 1024, 23 * kMiB - 1}}));
  EXPECT_EQ(held({8, 64}), (std::vector<Range>{{0, 91}}));
  EXPECT_EQ(held({16 * kMiB, 512 * kMiB}),
            (std::vector<Range>{{11776 * 1024, 23 * kMiB - 1}, {368 * kMiB, UINT64_MAX}}));
  EXPECT_EQ(held({32 * kMiB, 512 * kMiB}), (std::vector<Range>{{23 * kMiB, UINT64_MAX}}));
  EXPECT_EQ(edge_at(1e30), uint64_t{1} << 62);
}

TEST(Tune_curves, Steps_and_bytes_on_the_wire_are_those_of_the_algorithm) {
  CurveKey key{.nodes = 4, .ranks_per_node = 8, .algorithm = Algorithm::ring};
  EXPECT_EQ(steps_of(key), 62);
  EXPECT_DOUBLE_EQ(bus_factor(key), 62.0 / 32);
  key.algorithm = Algorithm::tree;
  EXPECT_EQ(steps_of(key), 18);
  key.algorithm = Algorithm::nvls_tree;
  EXPECT_EQ(steps_of(key), 6);
  key.algorithm = Algorithm::nvls;
  EXPECT_EQ(steps_of(key), 4);
  key.algorithm = Algorithm::collnet_chain;
  EXPECT_EQ(steps_of(key), 4);
  key.algorithm = Algorithm::collnet_direct;
  EXPECT_EQ(steps_of(key), 4);
  key = {.collective = Collective::all_gather, .nodes = 8, .ranks_per_node = 1};
  EXPECT_EQ(steps_of(key), 7);
  EXPECT_DOUBLE_EQ(bus_factor(key), 7.0 / 8);
  key.algorithm = Algorithm::pat;
  EXPECT_EQ(steps_of(key), 3);
  key.collective = Collective::broadcast;
  EXPECT_EQ(bus_factor(key), 1);
  // One rank alone waits for nobody, and still has a step.
  for (const Algorithm each : {Algorithm::ring, Algorithm::tree, Algorithm::nvls, Algorithm::pat})
    EXPECT_GE(steps_of({.nodes = 1, .ranks_per_node = 1, .algorithm = each}), 1);
}

}  // namespace
}  // namespace noria::perf
