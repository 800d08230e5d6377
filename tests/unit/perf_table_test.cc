#include "perf/table.hpp"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "perf/command_line.hpp"
#include "perf/nccl_tests_json.hpp"
#include "perf/sizes.hpp"
#include "perf/stats.hpp"

namespace noria::perf {
namespace {

TEST(Sizes, Numbers_take_decimals_and_suffixes_of_1024) {
  EXPECT_EQ(parse_size("8"), 8U);
  EXPECT_EQ(parse_size("0"), 0U);
  EXPECT_EQ(parse_size("64K"), 65536U);
  EXPECT_EQ(parse_size("64k"), 65536U);
  EXPECT_EQ(parse_size("1.5M"), 1572864U);
  EXPECT_EQ(parse_size("128MiB"), 134217728U);
  EXPECT_EQ(parse_size("2GB"), 2147483648U);
  EXPECT_EQ(parse_size("1T"), 1099511627776U);
  EXPECT_EQ(parse_size("0.3K"), 307U);  // rounded down
}

TEST(Sizes, Anything_else_is_refused) {
  for (const char* bad : {"", "-1", "-0", "+1", "K", "1X", "1KK", "1Ki", "1iB", "1 K", " 1", "nan",
                          "inf", "1e3", "0x10", "4611686018427387904", "99999999999T"})
    EXPECT_FALSE(parse_size(bad).has_value()) << bad;
}

TEST(Sizes, A_sweep_goes_by_factor_or_by_step_up_to_its_end) {
  EXPECT_EQ(sizes_of({.min_bytes = 8, .max_bytes = 100, .step_factor = 2}),
            (std::vector<uint64_t>{8, 16, 32, 64}));
  EXPECT_EQ(sizes_of({.min_bytes = 8, .max_bytes = 30, .step_bytes = 10}),
            (std::vector<uint64_t>{8, 18, 28}));
  EXPECT_EQ(sizes_of({.min_bytes = 8, .max_bytes = 8}), (std::vector<uint64_t>{8}));

  // From nothing a factor leads nowhere.  Expect: it goes on from one byte.
  EXPECT_EQ(sizes_of({.min_bytes = 0, .max_bytes = 4, .step_factor = 2}),
            (std::vector<uint64_t>{0, 1, 2, 4}));

  // The step leaves 64 bits.  Expect: an end.
  EXPECT_EQ(
      sizes_of({.min_bytes = UINT64_MAX - 1, .max_bytes = UINT64_MAX, .step_factor = 2}).size(),
      1U);
}

Row row_of(uint64_t bytes) {
  Row row{.bytes = bytes, .count = bytes / 4, .type = "float", .op = "sum"};
  row.out_of_place = {.time_us = 23.30, .algbw = 0.004, .busbw = 0.004, .wrong = 0};
  row.in_place = {.time_us = 17744.6, .algbw = 242.04, .busbw = 363.07, .wrong = 12};
  return row;
}

// The lines below have the layout of a public log of nccl-tests 2.18.
TEST(Table, Rows_look_as_those_of_nccl_tests) {
  EXPECT_EQ(
      table_row(row_of(8)),
      "           8             2     float     sum      -1    23.30    0.00    0.00       0  "
      "17744.6  242.04  363.07      12\n");
  Row unchecked = row_of(8589934592);
  unchecked.out_of_place.wrong.reset();
  EXPECT_EQ(
      table_row(unchecked).substr(0, 87),
      "  8589934592    2147483648     float     sum      -1    23.30    0.00    0.00     N/A  ");
}

TEST(Table, The_header_names_the_columns_above_their_values) {
  const std::string header = table_header();
  EXPECT_EQ(
      header,
      "#                                                              out-of-place             "
      "          in-place          \n"
      "#       size         count      type   redop    root     time   algbw   busbw  #wrong   "
      "  time   algbw   busbw  #wrong \n"
      "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)           "
      "  (us)  (GB/s)  (GB/s)         \n");
  const size_t line = header.find("#       size");
  EXPECT_EQ(header.find("time", line) - line + 4, table_row(row_of(8)).find("23.30") + 5);
}

TEST(Table, Numbers_give_up_decimals_before_they_leave_their_column) {
  EXPECT_EQ(fitted(0, 7), "   0.00");
  EXPECT_EQ(fitted(8926.72, 7), "8926.72");
  EXPECT_EQ(fitted(17744.62, 7), "17744.6");
  EXPECT_EQ(fitted(123456.7, 7), " 123457");
  EXPECT_EQ(fitted(1234567.8, 6), "1234568");  // wider rather than wrong
}

TEST(Table, The_footer_counts_wrong_elements_and_averages_all_cells) {
  Row right = row_of(8);
  right.in_place.wrong = 0;
  right.out_of_place.busbw = 1;
  right.in_place.busbw = 2;
  EXPECT_EQ(table_footer({right}),
            "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 1.5 \n#\n");
  EXPECT_EQ(table_footer({right, row_of(8)}).substr(0, 35), "# Out of bounds values : 12 FAILED\n");
}

TEST(Table, Everything_beyond_nccl_tests_is_a_comment) {
  std::string details = details_table({row_of(8), row_of(16)});
  size_t at = 0;
  int lines = 0;
  while (at < details.size()) {
    EXPECT_EQ(details[at], '#');
    at = details.find('\n', at) + 1;
    ++lines;
  }
  EXPECT_EQ(lines, 7);
}

TEST(Json, Results_have_the_keys_of_nccl_tests) {
  BenchOptions options;
  options.arguments = {"all_reduce_perf", "-b", "8"};
  noria_comm_info info{};
  std::snprintf(info.notice, sizeof info.notice, "a \"quoted\" notice");
  Row unchecked = row_of(8);
  unchecked.in_place.wrong.reset();
  const auto json = nlohmann::json::parse(nccl_tests_json(
      {"all_reduce_perf", options, {{0, 12, "host", "device"}}, info, {unchecked}, "2026", 100}));
  EXPECT_EQ(json["version"], 3);
  EXPECT_EQ(json["args"][2], "8");
  EXPECT_EQ(json["config"]["devices"][0]["device_info"], "device");
  EXPECT_EQ(json["config"]["step_bytes"], 1U << 20);
  EXPECT_EQ(json["results"][0]["size"], 8);
  EXPECT_EQ(json["results"][0]["out_of_place"]["nwrong"], 0);
  EXPECT_TRUE(json["results"][0]["in_place"]["nwrong"].is_null());
  EXPECT_EQ(json["out_of_bounds"]["okay"], true);
  EXPECT_EQ(json["notice"], "a \"quoted\" notice");
}

TEST(Stats, Percentiles_are_measurements) {
  const std::vector<double> values{5, 1, 4, 2, 3};
  EXPECT_EQ(median(values), 3);
  EXPECT_EQ(percentile(values, 99), 5);
  EXPECT_EQ(percentile(values, 0), 1);
  EXPECT_EQ(percentile({}, 50), 0);
  EXPECT_EQ(mean(values), 3);
  EXPECT_EQ(largest(values), 5);
  EXPECT_EQ(largest({}), 0);
}

std::string refusal(std::vector<const char*> arguments) {
  BenchOptions options;
  CLI::App app("", "tool");
  add_bench_flags(app, options);
  arguments.insert(arguments.begin(), "tool");
  try {
    parse_command_line(app, static_cast<int>(arguments.size()), arguments.data());
    settle(options);
  } catch (const ToolError& error) {
    EXPECT_EQ(error.code(), Exit::usage);
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  return "";
}

TEST(Command_line, Flags_have_the_names_and_meanings_of_nccl_tests) {
  BenchOptions options;
  CLI::App app("", "tool");
  add_bench_flags(app, options);
  const std::vector<const char*> arguments{
      "tool", "-b", "8",   "--maxbytes", "1.5M", "-f", "2", "-n", "3", "-w", "0",     "-c",
      "2",    "-d", "all", "-o",         "max",  "-z", "0", "-g", "4", "-J", "x.json"};
  ASSERT_FALSE(parse_command_line(app, static_cast<int>(arguments.size()), arguments.data()));
  EXPECT_EQ(options.sweep.min_bytes, 8U);
  EXPECT_EQ(options.sweep.max_bytes, 1572864U);
  EXPECT_EQ(options.sweep.step_factor, 2U);
  EXPECT_EQ(options.iterations, 3);
  EXPECT_EQ(options.warmups, 0);
  EXPECT_EQ(options.checks, 2);
  EXPECT_EQ(options.dtypes.size(), 6U);
  EXPECT_EQ(options.ops, std::vector<noria_op>{NORIA_MAX});
  EXPECT_FALSE(options.blocking);
  EXPECT_EQ(options.local_ranks, 4);
  EXPECT_EQ(options.json_file, "x.json");
}

TEST(Command_line, An_unknown_flag_is_named_with_the_nearest_known_one) {
  EXPECT_EQ(refusal({"--minbyte", "8"}),
            "--minbyte is not a flag of this tool; the nearest is --minbytes");
  EXPECT_EQ(refusal({"--iter=3"}), "--iter=3 is not a flag of this tool; the nearest is --iters");
  EXPECT_EQ(refusal({"stray"}), "'stray' belongs to no flag; --help lists them");
}

TEST(Command_line, A_refusal_is_one_line_whatever_the_words_are) {
  EXPECT_EQ(refusal({"--min\nbytes"}),
            "--min?bytes is not a flag of this tool; the nearest is --minbytes");
  EXPECT_EQ(refusal({"str\x1b[1may"}), "'str?[1may' belongs to no flag; --help lists them");
}

TEST(Command_line, A_value_out_of_range_is_named_with_the_range) {
  EXPECT_EQ(refusal({"-g", "0"}), "--ngpus: '0' is not accepted; it takes 1 to 1024");
  EXPECT_EQ(refusal({"-f", "1"}), "--stepfactor: '1' is not accepted; it takes 2 to 1024");
  EXPECT_EQ(refusal({"-n", "ten"}), "--iters: 'ten' is not accepted; it takes 1 to 10000000");
  EXPECT_EQ(refusal({"-d", "float8"}),
            "--datatype: 'float8' is not accepted; it takes "
            "int32|int64|half|float|double|bfloat16|all");
  EXPECT_EQ(refusal({"-b", "2T"}),
            "--minbytes: '2T' is not accepted; it takes 0 to 1024G bytes (K, M, G: 1024)");
  EXPECT_EQ(refusal({"-b", "64M"}),
            "-b 67108864 is above -e 33554432; it takes 0 to the value of -e");
  EXPECT_EQ(refusal({"-o", "avg", "-d", "int32"}),
            "-o avg: averages are of float, double, half and bfloat16 only");
  EXPECT_FALSE(refusal({"-b"}).empty());  // no value
}

}  // namespace
}  // namespace noria::perf
