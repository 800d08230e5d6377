#include "plugin/tuner/table.hpp"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "base/units.hpp"
#include "tests/support/no_descriptors.hpp"

namespace noria::plugin::tuner {
namespace {

const std::string kHead = "noria_table,1\n";
const std::string kRow =
    "all_reduce,4M-32M,2,8,8,ib400,hopper,2.22-2.30,NVLSTree,Simple,0,0,120,4.5,a log, of 2026";

Table parsed(const std::string& text) {
  auto table = parse_table(text, "t.csv");
  EXPECT_TRUE(table.is_ok()) << table.failure();
  return table ? std::move(*table) : Table();
}
std::string refusal(const std::string& text) {
  const auto table = parse_table(text, "t.csv");
  return table ? "none" : table.failure();
}

TEST(Tuner_table, A_row_says_all_that_its_columns_say) {
  const Table table = parsed("# a comment\r\n\n noria_table , 1\n" + kRow + "\r\n  # another\n");
  ASSERT_EQ(table.rows.size(), 1u);
  const Row& row = table.rows[0];
  EXPECT_EQ(row.collective, Collective::all_reduce);
  EXPECT_EQ(row.bytes, (Range{4_MiB, 32_MiB - 1}));
  EXPECT_EQ(row.nodes, (Range{2, 2}));
  EXPECT_EQ(row.ranks_per_node, (Range{8, 8}));
  EXPECT_EQ(row.nics, (Range{8, 8}));
  EXPECT_EQ(row.link, (Link{LinkKind::infiniband, 400}));
  EXPECT_EQ(row.gpu, Gpu::hopper);
  EXPECT_EQ(row.nccl, (Range{22200, 23099}));
  EXPECT_EQ(row.algorithm, Algorithm::nvls_tree);
  EXPECT_EQ(row.protocol, Protocol::simple);
  EXPECT_EQ(row.channels, 0);
  EXPECT_EQ(row.chunk_bytes, 0u);
  EXPECT_TRUE(row.is_predicted);
  EXPECT_DOUBLE_EQ(row.predicted_us(8_MiB), 156);
  EXPECT_EQ(row.provenance, "a log, of 2026");
  EXPECT_EQ(row.max_regret, Table::kMaxRegret);
  EXPECT_EQ(row.line, 4u);
}

TEST(Tuner_table, What_is_written_is_read_as_the_same) {
  const std::string rows[]{
      kRow, "broadcast,*,*,*,*,*,*,*,Ring,LL,64,16,-,-,x",
      "all_gather,1-,1-,0-4,3,eth,volta,2.30.7,PAT,Simple,1,4M,0,0,y",
      "reduce,4096,2-4,8,1,eth100,ampere,2.27,Ring,LL128,2,1920,1.25,0.001,z",
      "reduce_scatter,0-64K,2,8,8,ib,blackwell,2.23.1-,NVLS,Simple,0,512,-,-,-"};
  for (const std::string& text : rows) {
    const Table table = parsed(kHead + text + "\n");
    ASSERT_EQ(table.rows.size(), 1u);
    const Table again = parsed(kHead + text_of(table.rows[0]) + "\n");
    EXPECT_EQ(text_of(again.rows[0]), text_of(table.rows[0])) << text;
    EXPECT_EQ(fingerprint_of(again), fingerprint_of(table)) << text;
  }
  const std::string whole =
      kHead +
      "max_regret,0.25\nconstant,hwLatencies,2,6,1,3.5\n"
      "constant,perChMaxNVLSTreeBws,3,2,80\n" +
      "# collective,bytes,nodes,ranks_per_node,nics,"
      "link,gpu,nccl,algorithm,protocol,channels,chunk,fixed_us,us_per_mib,provenance\n" +
      rows[0] + "\n";
  EXPECT_EQ(text_of(parsed(whole)), whole);
  // Lines for people change nothing.
  const std::string told = text_of(parsed(whole), {"of a test", "and more"});
  EXPECT_NE(told.find("max_regret,0.25\n# of a test\n# and more\nconstant,"), std::string::npos)
      << told;
  EXPECT_EQ(text_of(parsed(told)), whole);
}

TEST(Tuner_table, Names_are_read_in_any_case_and_blanks_around_values_do_not_count) {
  const Table table =
      parsed(kHead + " ALL_REDUCE , * ,*,*,*,*,*,*, nvlstree ,SIMPLE, 0,0, -,-, here ");
  ASSERT_EQ(table.rows.size(), 1u);
  EXPECT_EQ(table.rows[0].algorithm, Algorithm::nvls_tree);
  EXPECT_EQ(table.rows[0].provenance, "here");
}

TEST(Tuner_table, What_is_wrong_is_said_with_line_column_and_what_was_expected) {
  const auto with = [](const std::string& columns) { return kHead + columns; };
  const std::pair<std::string, const char*> cases[]{
      {"", "t.csv:1:1: '' stands where noria_table,1 as the first line was expected"},
      {"noria_table,2\n", "t.csv:1:1: 'noria_table' stands where noria_table,1"},
      {"noria_table,1,1\n", "t.csv:1:1: "},
      {kRow, "t.csv:1:1: 'all_reduce' stands where noria_table,1"},
      {with("max_regret,2\n"), "t.csv:2:12: '2' stands where a part of 1"},
      {with("max_regret,nan\n"), "t.csv:2:12: "},
      {with("max_regret,0.1,x\n"), "t.csv:2:16: 'x' stands where the end of the line"},
      {with("constant,llMaxBw,1,1,1\n"), "t.csv:2:10: 'llMaxBw' stands where an array"},
      {with("constant,llMaxBws,4,1,1\n"), "t.csv:2:19: '4' stands where an index below 4"},
      {with("constant,llMaxBws,1,1,-1\n"), "t.csv:2:23: '-1' stands where a number"},
      {with("constant,llMaxBws,1,1,1,1\n"), "t.csv:2:25: '1' stands where the end"},
      {with("allreduce,*\n"), "t.csv:2:1: 'allreduce' stands where collective (broadcast,"},
      {with("all_reduce,4M-4M,"), "t.csv:2:12: '4M-4M' stands where bytes"},
      {with("all_reduce,4M-2M,"), "t.csv:2:12: "},
      {with("all_reduce,-4M,"), "t.csv:2:12: "},
      {with("all_reduce,,"), "t.csv:2:12: '' stands where bytes"},
      {with("all_reduce,*,4-2,"), "t.csv:2:14: '4-2' stands where nodes"},
      {with("all_reduce,*,2K,"), "t.csv:2:14: '2K' stands where nodes"},
      {with("all_reduce,*,*,x,"), "t.csv:2:16: 'x' stands where ranks_per_node"},
      {with("all_reduce,*,*,*,x,"), "t.csv:2:18: 'x' stands where nics"},
      {with("all_reduce,*,*,*,*,400,"), "t.csv:2:20: '400' stands where link"},
      {with("all_reduce,*,*,*,*,ib0,"), "t.csv:2:20: 'ib0' stands where link"},
      {with("all_reduce,*,*,*,*,*,h100,"), "t.csv:2:22: 'h100' stands where gpu"},
      {with("all_reduce,*,*,*,*,*,*,2,"), "t.csv:2:24: '2' stands where nccl"},
      {with("all_reduce,*,*,*,*,*,*,2.22.x,"), "t.csv:2:24: "},
      {with("all_reduce,*,*,*,*,*,*,2.200,"), "t.csv:2:24: "},
      {with("all_reduce,*,*,*,*,*,*,*,PAT,"), "t.csv:2:26: 'PAT' stands where algorithm"},
      {with("broadcast,*,*,*,*,*,*,*,Tree,"), "t.csv:2:25: 'Tree' stands where algorithm"},
      {with("all_reduce,*,*,*,*,*,*,*,NVLS,LL,"), "t.csv:2:31: 'LL' stands where protocol"},
      {with("all_reduce,*,*,*,*,*,*,*,Ring,LL,65,"), "t.csv:2:34: '65' stands where channels"},
      {with("all_reduce,*,*,*,*,*,*,*,Ring,LL,0,8,"), "t.csv:2:36: '8' stands where chunk"},
      {with("all_reduce,*,*,*,*,*,*,*,Ring,LL,0,8M,"), "t.csv:2:36: '8M' stands where chunk"},
      {with("all_reduce,*,*,*,*,*,*,*,Ring,LL,0,0,-1,"), "t.csv:2:38: '-1' stands where fixed_us"},
      {with("all_reduce,*,*,*,*,*,*,*,Ring,LL,0,0,1,-,"), "t.csv:2:40: '-' stands where us_per"},
      {with("all_reduce,*,*,*,*,*,*,*,Ring,LL,0,0,-,1,"), "t.csv:2:40: '1' stands where us_per"},
      {with("all_reduce,*,*,*,*,*,*,*,Ring,LL,0,0,1,1"), "t.csv:2:41: '' stands where provenance"},
      {with("all_reduce,*,*,*,*,*,*,*,Ring,LL,0,0,1,1, "), "t.csv:2:42: '' stands where prov"},
      {with("all_reduce,*\x01,"), "t.csv:2:13: 'all_reduce,*?,' stands where printable text"}};
  for (const auto& [text, expected] : cases) {
    const std::string found = refusal(text);
    EXPECT_TRUE(found.starts_with(expected)) << text << "\n" << found;
  }
}

TEST(Tuner_table, Only_a_regular_file_of_some_megabytes_is_read) {
  const std::string path = testing::TempDir() + "noria_table_" + std::to_string(getpid());
  EXPECT_EQ(read_table(path).failure(), path + ": cannot be read: No such file or directory");
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(read_table(path).failure(), path + ": is not a regular file");
  unlink(path.c_str());
  std::ofstream(path) << kHead << kRow << "\n";
  EXPECT_EQ(read_table(path)->rows.size(), 1u);
  ASSERT_EQ(truncate(path.c_str(), static_cast<off_t>(kMostTableBytes) + 1), 0);
  EXPECT_TRUE(read_table(path).failure().starts_with(path + ": has 16777217 bytes")) << path;
  unlink(path.c_str());
}

TEST(Tuner_table, A_file_that_does_not_say_how_long_it_is_counts_as_empty) {
  // Its first byte cannot be read.
  EXPECT_TRUE(read_table("/proc/self/mem").failure().starts_with("/proc/self/mem:1:1: ''"));
}

// By what root, as whom this may run, cannot do either.
TEST(Tuner_table, A_file_that_cannot_be_opened_or_read_is_refused_with_the_cause) {
  const std::string path = testing::TempDir() + "noria_table_" + std::to_string(getpid());
  std::ofstream(path) << kHead << kRow << "\n";
  const auto refused = [&] {
    const test::NoDescriptors none;
    return read_table(path);
  }();
  unlink(path.c_str());
  EXPECT_EQ(refused.failure(), path + ": cannot be read: Too many open files");
  // What the loopback interface has no answer to.
  const std::string speed = "/sys/class/net/lo/speed";
  if (std::filesystem::exists(speed)) {
    EXPECT_EQ(read_table(speed).failure(), speed + ": cannot be read: Invalid argument");
  }
}

TEST(Tuner_table, A_folder_that_is_not_there_has_no_tables_and_one_that_cannot_be_read_says_why) {
  const std::string path = testing::TempDir() + "noria_tables_" + std::to_string(getpid());
  EXPECT_TRUE(tables_in(path)->empty());
  std::ofstream(path) << "no folder\n";
  EXPECT_EQ(tables_in(path).failure(), path + ": cannot be read: Not a directory");
  unlink(path.c_str());
}

TEST(Tuner_table, A_row_is_for_the_hardware_that_it_names) {
  const Row row = parsed(kHead + kRow).rows[0];
  const Hardware here{{LinkKind::infiniband, 400}, 8, Gpu::hopper, 22703};
  EXPECT_TRUE(is_for(row, here));
  EXPECT_EQ(text_of(here), "8 NICs of ib400, hopper, NCCL 2.27.3");
  Hardware other = here;
  other.nics = 4;
  EXPECT_FALSE(is_for(row, other));
  other = here;
  other.link.kind = LinkKind::ethernet;
  EXPECT_FALSE(is_for(row, other));
  other = here;
  other.link.gbit = 200;
  EXPECT_FALSE(is_for(row, other));
  other = here;
  other.gpu.reset();
  EXPECT_FALSE(is_for(row, other));
  other = here;
  other.nccl_version = 0;
  EXPECT_FALSE(is_for(row, other));
  other.nccl_version = 23100;
  EXPECT_FALSE(is_for(row, other));
}

// Else its peers would refuse it.
TEST(Tuner_table, A_node_that_lost_a_port_has_the_rows_of_its_peers_of_those_that_come_with_noria) {
  const auto fingerprint_with = [](uint64_t nics) {
    Table all;
    const auto paths = tables_in(NORIA_TABLES);
    for (const std::string& path : *paths) {
      auto table = read_table(path);
      EXPECT_TRUE(table.is_ok()) << table.failure();
      keep_rows_for({{LinkKind::infiniband, 400}, nics, Gpu::hopper, 23007}, &*table);
      all.rows.insert(all.rows.end(), table->rows.begin(), table->rows.end());
    }
    EXPECT_FALSE(all.rows.empty()) << nics;
    return fingerprint_of(all);
  };
  for (const uint64_t nics : {5u, 6u, 7u}) EXPECT_EQ(fingerprint_with(nics), fingerprint_with(8));
  EXPECT_EQ(fingerprint_with(3), fingerprint_with(4));
  EXPECT_EQ(fingerprint_with(1), fingerprint_with(2));
  EXPECT_NE(fingerprint_with(4), fingerprint_with(8));
}

TEST(Tuner_table, Its_fingerprint_is_of_what_choices_depend_on) {
  EXPECT_EQ(fingerprint_of(Table()), 0u);
  const uint64_t all = fingerprint_of(parsed(kHead + kRow));
  const auto changed = [](std::string from, const std::string& to) {
    std::string text = kRow;
    return fingerprint_of(parsed(kHead + text.replace(text.find(from), from.size(), to)));
  };
  EXPECT_EQ(changed("a log", "another log"), all);
  EXPECT_NE(changed("a log", "modelled"), all);  // which counts less
  for (const auto& [from, to] :
       {std::pair{"4M", "2M"}, std::pair{",2,", ",3,"}, std::pair{"NVLSTree", "Ring"},
        std::pair{",0,0,", ",1,0,"}, std::pair{",0,0,", ",0,512,"}, std::pair{"4.5", "4.6"}})
    EXPECT_NE(changed(from, to), all) << from;
  EXPECT_NE(fingerprint_of(parsed(kHead + "max_regret,0.5\n" + kRow)), all);
  EXPECT_NE(fingerprint_of(parsed(kHead + "constant,llMaxBws,1,1,1\n" + kRow)), all);
}

}  // namespace
}  // namespace noria::plugin::tuner
