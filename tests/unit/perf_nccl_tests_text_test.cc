#include "perf/nccl_tests_text.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "perf/log_fault.hpp"

namespace noria::perf {
namespace {

const std::string kTitles =
    "#       size         count      type   redop    root     time   algbw   busbw #wrong     time"
    "   algbw   busbw #wrong\n#        (B)    (elements)\n";
const std::string kAverage = "# Avg bus bandwidth    : 12.5 \n";

// A whole run of two ranks on two nodes.
std::string run_of(const std::string& rows) {
  return "# nccl-tests version 2.17.1 nccl-headers=22703 nccl-library=22703\n"
         "# Collective test starting: all_reduce_perf\n"
         "# nThread 1 nGpus 1 minBytes 8 maxBytes 16 step: 2(factor)\n#\n# Using devices\n"
         "#  Rank  0 Group  0 Pid  11 on     north device  0 [0000:1b:00] NVIDIA Made Up 1\n"
         "#  Rank  1 Group  0 Pid  12 on     south device  0 [0000:1b:00] NVIDIA Made Up 1\n#\n" +
         kTitles + rows + "# Out of bounds values : 0 OK\n" + kAverage;
}

LoggedTable only_table(const std::string& text) {
  const NcclTestsLog log = parse_nccl_tests(text);
  EXPECT_EQ(log.tables.size(), 1u);
  return log.tables.empty() ? LoggedTable() : log.tables[0];
}
LoggedRow only_row(const std::string& text) {
  const LoggedTable table = only_table(text);
  EXPECT_EQ(table.rows.size(), 1u);
  return table.rows.empty() ? LoggedRow() : table.rows[0];
}
std::string text_of(const LoggedRow& row) {
  std::string text = std::to_string(row.bytes) + " " + std::to_string(row.count) + " " + row.type +
                     " [" + row.redop + "] [" + row.root + "]";
  for (const LoggedHalf* half : {&row.out_of_place, &row.in_place})
    text += " " + half->time_us + "/" + half->algbw + "/" + half->busbw + "/" + half->wrong;
  return text;
}

const std::string kRow =
    "     4096          1024     float     sum      -1    21.50    0.19    0.31      0    22.25    "
    "0.18    0.30      0\n";
const char* const kRead = "4096 1024 float [sum] [-1] 21.50/0.19/0.31/0 22.25/0.18/0.30/0";

TEST(Nccl_tests_text, A_run_says_what_was_measured_where) {
  const LoggedTable table = only_table(run_of(kRow));
  EXPECT_EQ(table.collective, "all_reduce");
  EXPECT_EQ(table.ranks, 2u);
  EXPECT_EQ(table.nodes, 2u);
  EXPECT_EQ(table.gpu, "NVIDIA Made Up 1");
  EXPECT_EQ(table.nccl_version, "2.27.3");
  EXPECT_TRUE(table.has_end);
  ASSERT_EQ(table.rows.size(), 1u);
  EXPECT_EQ(text_of(table.rows[0]), kRead);
  EXPECT_EQ(table.rows[0].line, 11u);
  EXPECT_EQ(fault_of(table, {}), "");
}

TEST(Nccl_tests_text, Tags_labels_prefixes_and_blanks_do_not_count) {
  const std::string half = "    21.50    0.19    0.31      0",
                    other = "    22.25    0.18    0.30 0";
  const std::string head = "  4096   1024   float   sum      -1";
  const std::string tag = "[1,12]<stdout>:";
  for (const std::string& row :
       {tag + kRow, tag + head + tag + half + tag + other + "\r\n", "   " + tag + kRow,
        "7: " + kRow, " 17: " + kRow, "[STAT]:" + kRow.substr(5), "\t" + kRow})
    EXPECT_EQ(text_of(only_row(run_of(row))), kRead) << row;
}

TEST(Nccl_tests_text, A_row_that_other_lines_cut_is_put_together) {
  const std::string info = "north:11:11 [0] NCCL INFO AllReduce: 4096 Bytes -> Algo RING\n";
  EXPECT_EQ(text_of(only_row(run_of("  4096   1024   float   sum      -1" + info + info +
                                    "   21.50    0.19    0.31       0" + info + info +
                                    "   22.25    0.18    0.30       0\n"))),
            kRead);
  EXPECT_EQ(text_of(only_row(run_of("  4096   1024   float   sum      -1    21.50  0.19  0.31  0" +
                                    info + "  22.25  0.18  0.30  0\n" + info))),
            kRead);
  EXPECT_EQ(text_of(only_row(run_of("  4096 1024 float sum -1\n" + info +
                                    " 21.50 0.19 0.31 0 22.25 0.18 0.30 0\n 1 2 3 4\n"))),
            kRead);
}

TEST(Nccl_tests_text, Columns_that_a_version_does_not_have_are_absent) {
  const std::string halves = " time algbw busbw error time algbw busbw error\n";
  EXPECT_EQ(text_of(only_row("# size count type redop" + halves +
                             " 8 2 float sum 5.1 0.00 0.00 N/A 5e-07 2.62144e+07 0.00 0e+00\n")),
            "8 2 float [sum] [] 5.1/0.00/0.00/N/A 5e-07/2.62144e+07/0.00/0e+00");
  EXPECT_EQ(text_of(only_row("# size count type" + halves + "0 0 float 5.1 0.0 0.0 0 5.2 0 0 1\n")),
            "0 0 float [] [] 5.1/0.0/0.0/0 5.2/0/0/1");
  EXPECT_EQ(text_of(only_row("# size count type root" + halves + "8 8 int8 0 5 0 0 0 6 0 0 0\n")),
            "8 8 int8 [] [0] 5/0/0/0 6/0/0/0");
  // The redop of a broadcast was blank once; and a table without the second half.
  EXPECT_EQ(
      text_of(only_row("# size count type redop root" + halves + "8 2 half 3 5 0 0 0 6 0 0 0\n")),
      "8 2 half [] [3] 5/0/0/0 6/0/0/0");
  EXPECT_EQ(text_of(only_row("# size count type redop time algbw busbw error\n"
                             "8 2 float sum 5.1 0.00 0.00 N/A\n")),
            "8 2 float [sum] [] 5.1/0.00/0.00/N/A ///");
}

TEST(Nccl_tests_text, Tables_one_behind_the_other_are_told_apart) {
  const NcclTestsLog log =
      parse_nccl_tests(run_of(kRow) + "$ ./build/all_gather_perf\n" + run_of(kRow + kRow));
  ASSERT_EQ(log.tables.size(), 2u);
  EXPECT_EQ(log.tables[1].rows.size(), 2u);
  EXPECT_FALSE(log.is_interleaved);
  // Without titles, each run has a line of its own.
  const NcclTestsLog bare = parse_nccl_tests("### ALGO=Ring PROTO=LL\n" + kRow + kAverage +
                                             "### ALGO=Tree PROTO=LL\n" + kRow + kAverage);
  ASSERT_EQ(bare.tables.size(), 2u);
  EXPECT_EQ(bare.tables[0].algorithm, "Ring");
  EXPECT_EQ(bare.tables[1].algorithm, "Tree");
  EXPECT_EQ(bare.tables[1].protocol, "LL");
}

TEST(Nccl_tests_text, A_setting_is_of_its_run_of_its_heading_or_of_its_export) {
  const auto settings_of = [](const std::string& text) {
    std::string all;
    for (const LoggedTable& table : parse_nccl_tests(text).tables)
      all += "[" + table.algorithm + "/" + table.protocol + "]";
    return all;
  };
  const std::string run = run_of(kRow);
  EXPECT_EQ(settings_of("# NCCL_ALGO=Ring NCCL_PROTO=LL\n" + run + run), "[Ring/LL][/]");
  EXPECT_EQ(settings_of("$ NCCL_ALGO=Ring ./all_reduce_perf\n" + run + "$ ./x\n" + run),
            "[Ring/][/]");
  EXPECT_EQ(settings_of("### C: NCCL_PROTO=LL\n" + run + run + "### A: DEFAULT\n" + run),
            "[/LL][/LL][/]");
  EXPECT_EQ(settings_of(run + "export NCCL_ALGO=RING\n" + run + run), "[/][RING/][RING/]");
  EXPECT_EQ(settings_of("export NCCL_ALGO=Ring\n" + run + "export NCCL_ALGO=Tree\n" + run),
            "[Ring/][Tree/]");
  // As NCCL says it, with NCCL_DEBUG=INFO.
  EXPECT_EQ(settings_of("north:11:11 [0] NCCL INFO NCCL_PROTO set by environment to LL128\n" + run),
            "[/LL128]");
}

TEST(Nccl_tests_text, What_NCCL_says_that_it_chose_is_of_the_size_that_it_counts) {
  const std::string info = "north:11:11 [0] NCCL INFO ";
  const auto chosen = [&](const std::string& program, const std::string& line) {
    std::string run = run_of(info + line + "\n" + kRow);
    run.replace(run.find("all_reduce_perf"), 15, program);
    const LoggedRow row = only_row(run);
    return row.algorithm + "/" + row.protocol;
  };
  EXPECT_EQ(chosen("all_reduce_perf", "AllReduce: 4096 Bytes -> Algo NVLS_TREE proto SIMPLE"),
            "NVLS_TREE/SIMPLE");
  // Of a gather the bytes of one of two ranks.
  EXPECT_EQ(chosen("all_gather_perf", "AllGather: 2048 Bytes -> Algo RING proto LL"), "RING/LL");
  EXPECT_EQ(chosen("all_gather_perf", "AllGather: 4096 Bytes -> Algo RING proto LL"), "/");
  EXPECT_EQ(chosen("reduce_scatter_perf", "ReduceScatter: 2048 Bytes -> Algo PAT proto SIMPLE"),
            "PAT/SIMPLE");
  // As before NCCL 2.23: without the function, of all ranks, and by numbers.
  EXPECT_EQ(chosen("all_gather_perf", "4096 Bytes -> Algo 1 proto 2 time 12.5"), "1/2");
  // Of another operation.
  EXPECT_EQ(chosen("all_gather_perf", "AllReduce: 4096 Bytes -> Algo RING proto LL"), "/");
}

TEST(Nccl_tests_text, The_program_is_inferred_where_only_an_all_reduce_can_be_meant) {
  const std::string row = " 1048576 262144 float sum -1 50 20.97 36.70 0 50 20.97 36.70 0\n";
  EXPECT_EQ(only_table(kTitles + row).collective, "all_reduce");
  EXPECT_EQ(only_table(kTitles + kRow).collective, "");
}

TEST(Nccl_tests_text, Numbers_that_are_no_rows_are_left_alone) {
  const NcclTestsLog log = parse_nccl_tests(
      "4096 1024 apples 1 2 3 4\n1 2 3 4\ncounter 8 293770470 13353203.2\n"
      "4096 1024 float sum -1 1 2 3\n[9,\n[12]<stdout\n-\n");
  EXPECT_TRUE(log.tables.empty());
  EXPECT_TRUE(parse_nccl_tests("").tables.empty());
}

TEST(Nccl_tests_text, A_table_that_is_not_to_be_trusted_says_why) {
  const auto fault = [](const std::string& text) {
    const NcclTestsLog log = parse_nccl_tests(text);
    return log.tables.empty() ? "no table" : fault_of(log.tables[0], log);
  };
  EXPECT_EQ(fault(kTitles + kRow), "it ends without its average: cut off, or the program died");
  const std::string one =
      "# nThread 1\n#  Rank  0 Group  0 Pid  11 on     north device  0 [0x01] NVIDIA Made Up 1\n";
  EXPECT_EQ(fault(one + kTitles + kRow + kAverage), "of one rank, which sends nothing");
  EXPECT_EQ(fault("# nThread 1\n# nThread 1\n" + kTitles + kRow + kTitles + kRow + kAverage),
            "several programs print at once: was it built without MPI?");
  EXPECT_EQ(fault(kTitles + " 8 2 float sum -1 5 0 0 3 5 0 0 0\n" + kAverage),
            "line 3 has wrong results");
}

TEST(Nccl_tests_text, Rows_of_two_runs_in_one_table_are_found) {
  const auto fault = [](const std::vector<int>& sizes, int averages) {
    std::string text = kTitles;
    for (const int bytes : sizes)
      text += std::to_string(bytes) + " 2 float sum -1 5 0 0 0 5 0 0 0\n";
    for (int i = 0; i < averages; ++i) text += kAverage;
    const NcclTestsLog log = parse_nccl_tests(text);
    return fault_of(log.tables[0], log);
  };
  EXPECT_EQ(fault({8, 16, 8, 32, 16}, 1),
            "its sizes do not rise at line 7: do several programs print at once?");
  EXPECT_EQ(fault({8, 8, 16, 16}, 2),
            "its sizes do not rise at line 6: do several programs print at once?");
  // Cycles, a size that is rounded to the one before, and an average that a script shows again.
  EXPECT_EQ(fault({8, 16, 32, 8, 16, 32}, 1), "");
  EXPECT_EQ(fault({0, 0, 64, 64, 128}, 1), "");
  EXPECT_EQ(fault({8, 16, 32}, 2), "");
  // Types and roots are measured one behind the other.
  const std::string two_types =
      kTitles + "8 2 float sum -1 5 0 0 0 5 0 0 0\n" + "16 4 float sum -1 5 0 0 0 5 0 0 0\n" +
      "8 4 half sum -1 5 0 0 0 5 0 0 0\n" + "16 8 half sum -1 5 0 0 0 5 0 0 0\n" + kAverage;
  const NcclTestsLog log = parse_nccl_tests(two_types);
  EXPECT_EQ(fault_of(log.tables[0], log), "");
}

TEST(Nccl_tests_text, A_line_of_any_length_is_passed_over) {
  for (const char* start : {"Rank 1 ", "NCCL_ALGO=\"", "all_reduce_perf"}) {
    const std::string endless = std::string(start) + std::string(1 << 20, 'a') + "\n";
    EXPECT_EQ(only_row(run_of(endless + kRow)).bytes, 4096u);
  }
}

}  // namespace
}  // namespace noria::perf
