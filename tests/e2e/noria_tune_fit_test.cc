// noria_tune from a job script to a table, as a user goes: sweep, fit, check, regret, plot.
#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/e2e/tool_runs.hpp"
#include "tests/support/scratch_folder.hpp"

namespace noria::perf {
namespace {

// Times of 16 ranks on two nodes, on a line, from 8 bytes to 256 MiB by the factor 4.
std::string log_of(const std::string& head, double fixed_us, double us_per_mib) {
  std::string text = head + "# Collective test starting: all_reduce_perf\n# nThread 1 nGpus 1\n";
  for (int rank = 0; rank < 16; ++rank)
    text += "#  Rank " + std::to_string(rank) + " Group  0 Pid 1 on " +
            (rank < 8 ? "north" : "south") + " device 0 [0x1b] NVIDIA H100 80GB HBM3\n";
  text += "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n";
  for (uint64_t bytes = 8; bytes <= uint64_t{256} << 20; bytes *= 4) {
    char row[200];
    const double us = fixed_us + us_per_mib * static_cast<double>(bytes) / (1 << 20);
    std::snprintf(row, sizeof row, "%lu %lu float sum -1 %.3f 1 1 0 %.3f 1 1 0\n",
                  static_cast<unsigned long>(bytes), static_cast<unsigned long>(bytes / 4), us,
                  us * 1.01);
    text += row;
  }
  return text + "# Avg bus bandwidth    : 1\n";
}

class NoriaTuneFit : public test::ScratchFolder {
 protected:
  std::string write(const std::string& name, const std::string& text) const {
    std::ofstream(in_folder(name)) << text;
    return in_folder(name);
  }
  // Ring is better from 4 MiB on, LL before.
  std::string ring() const {
    return write("ring.log", log_of("# NCCL_ALGO=Ring NCCL_PROTO=Simple\n", 90, 5));
  }
  std::string tree() const {
    return write("tree.log", log_of("# NCCL_ALGO=Tree NCCL_PROTO=LL\n", 10, 25));
  }
};

TEST_F(NoriaTuneFit, Logs_become_a_table_that_is_well_and_says_what_it_comes_from) {
  const std::string out = in_folder("t.csv");
  const ToolEnd end = run_tool_to_end({"noria_tune", "fit", ring(), tree(), "--nics", "8", "--link",
                                       "ib400", "--provenance", "our cluster", "-o", out});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  EXPECT_NE(end.out.find("2 curves; median error of sizes left out: 0.0 %"), std::string::npos)
      << end.out;
  EXPECT_NE(end.out.find(out + ": 4 rows"), std::string::npos) << end.out;
  const std::string table = read("t.csv");
  EXPECT_NE(table.find("all_reduce,0-4M,2,8,8,ib400,hopper,*,Tree,LL,0,0,"), std::string::npos)
      << table;
  EXPECT_NE(table.find("tree.log table 1; our cluster\n"), std::string::npos) << table;
  EXPECT_EQ(run_tool_to_end({"noria_tune", "check", out}).exit_code, 0);
  // Expect: by it, and by all sizes but one, never slower than the best.
  for (const std::vector<std::string>& with :
       {std::vector<std::string>{"--table", out}, std::vector<std::string>{}}) {
    std::vector<std::string> command{"noria_tune", "regret", ring(), tree()};
    command.insert(command.end(), with.begin(), with.end());
    const ToolEnd regret = run_tool_to_end(command);
    EXPECT_EQ(regret.exit_code, 0) << regret.err << regret.out;
    EXPECT_NE(regret.out.find("more than 5 %: ours at 0"), std::string::npos) << regret.out;
  }
}

TEST_F(NoriaTuneFit, Fit_and_regret_say_the_same_as_JSON) {
  const std::string own = write("own.log", log_of("", 100, 6));
  const ToolEnd fit = run_tool_to_end({"noria_tune", "fit", ring(), own, "--nics", "8", "--link",
                                       "ib400", "-o", in_folder("t.csv"), "--json"});
  ASSERT_EQ(fit.exit_code, 0) << fit.err;
  const auto fitted = nlohmann::json::parse(fit.out);
  ASSERT_EQ(fitted["curves"].size(), 2u);
  EXPECT_EQ(fitted["curves"][0]["gives_rows"], false);
  EXPECT_EQ(fitted["curves"][1]["curve"], "all_reduce Ring/Simple, 2 nodes of 8");
  EXPECT_EQ(fitted["curves"][1]["sources"][0], "ring.log table 1");
  EXPECT_EQ(fitted["rows"], 1);
  EXPECT_EQ(fitted["table"], in_folder("t.csv"));
  const ToolEnd alone = run_tool_to_end({"noria_tune", "fit", ring(), "--json"});
  EXPECT_EQ(nlohmann::json::parse(alone.out)["rows"], 0);
  const ToolEnd regret = run_tool_to_end({"noria_tune", "regret", ring(), tree(), "--json"});
  EXPECT_EQ(regret.exit_code, 0) << regret.err;
  const auto regrets = nlohmann::json::parse(regret.out);
  EXPECT_EQ(regrets["sizes"].size(), 13u);
  EXPECT_EQ(regrets["sizes"][0]["best"]["choice"], "Tree/LL");
  EXPECT_EQ(regrets["slower_than_nccl"], 0);
}

TEST_F(NoriaTuneFit, A_table_of_wrong_times_is_found_to_be_slower_than_NCCL) {
  const std::string table =
      write("t.csv", "noria_table,1\nall_reduce,64M-,2,8,*,*,*,*,Tree,LL,0,0,-,-,of nobody\n");
  const ToolEnd end = run_tool_to_end({"noria_tune", "regret", ring(), tree(), "--table", table});
  EXPECT_EQ(end.exit_code, 1) << end.err;
  EXPECT_NE(end.out.find("slower than NCCL's by more than max_regret (0.05): at 1"),
            std::string::npos)
      << end.out;
}

TEST_F(NoriaTuneFit, What_NCCL_chose_is_asked_for_guessed_by_its_model_or_gives_no_row) {
  const std::string log = write("default.log", log_of("", 20, 6));
  const std::vector<std::string> fit{"noria_tune", "fit", log, "--nics", "8", "--link", "ib400"};
  const auto with = [&](std::vector<std::string> more) {
    std::vector<std::string> command = fit;
    command.insert(command.end(), more.begin(), more.end());
    return run_tool_to_end(command);
  };
  const ToolEnd none = with({"-o", in_folder("t.csv")});
  EXPECT_EQ(none.exit_code, 2);
  EXPECT_NE(none.err.find("would have no row"), std::string::npos) << none.err;
  EXPECT_EQ(read("t.csv"), "");
  const ToolEnd alone = with({});
  EXPECT_EQ(alone.exit_code, 0);
  EXPECT_NE(alone.out.find("gives no row"), std::string::npos) << alone.out;
  EXPECT_EQ(with({"-o", in_folder("t.csv"), "--algorithm", "NVLSTree"}).exit_code, 0);
  EXPECT_NE(read("t.csv").find("NVLSTree,Simple"), std::string::npos);
  EXPECT_EQ(with({"-o", in_folder("m.csv"), "--nccl-model", "--up-to-nodes", "8"}).exit_code, 0);
  EXPECT_NE(read("m.csv").find("modelled choice of NCCL's in default.log table 1"),
            std::string::npos);
  EXPECT_NE(
      read("m.csv").find("modelled choice of NCCL's at 8 nodes from 2 of default.log table 1"),
      std::string::npos);
  EXPECT_EQ(run_tool_to_end({"noria_tune", "check", in_folder("m.csv")}).exit_code, 0);
}

TEST_F(NoriaTuneFit, The_script_of_a_sweep_runs_and_its_logs_are_fitted) {
  const std::string script = in_folder("job.sh");
  for (const std::string launcher : {"slurm", "mpirun"}) {
    const ToolEnd end = run_tool_to_end(
        {"noria_tune", "sweep", "--launcher", launcher, "-b", "1M", "-e", "4M", "-o", script});
    ASSERT_EQ(end.exit_code, 0) << end.err;
    EXPECT_EQ(run_tool_to_end({"/bin/bash", "-n", script}).exit_code, 0) << read("job.sh");
  }
  // A cluster of one file: mpirun answers with a log of ours, and fails for LL128.
  write("canned", log_of("", 50, 6));
  write("mpirun",
        "#!/bin/bash\ncase \"$*\" in *LL128*) exit 1;; esac\ncat '" + in_folder("canned") + "'\n");
  ASSERT_EQ(run_tool_to_end({"/bin/chmod", "+x", in_folder("mpirun")}).exit_code, 0);
  const std::string path = in_folder("") + ":" + std::getenv("PATH");
  const ToolEnd job = run_tool_to_end({"/bin/bash", script, in_folder("logs")}, {{"PATH", path}});
  EXPECT_EQ(job.exit_code, 1) << job.err;  // two of its runs failed
  EXPECT_NE(job.out.find("7 runs, 2 failed"), std::string::npos) << job.out;
  const std::string why = in_folder("logs/all_reduce-Ring-LL128-1048576.log.failed");
  EXPECT_NE(job.err.find("Ring/LL128 from 1048576 to 4194304 failed: " + why + " says why"),
            std::string::npos)
      << job.err;
  EXPECT_TRUE(std::filesystem::exists(why));
  const std::string table = in_folder("t.csv");
  const ToolEnd fit =
      run_tool_to_end({"noria_tune", "fit", in_folder("logs/all_reduce-Ring-LL-1048576.log"),
                       in_folder("logs/all_reduce-NVLSTree-Simple-1048576.log"), "--nics", "8",
                       "--link", "ib400", "-o", table});
  EXPECT_EQ(fit.exit_code, 0) << fit.err;
  // Expect: what was measured is missing no more, and with all of it nothing is.
  EXPECT_EQ(run_tool_to_end(
                {"noria_tune", "sweep", "--table", table, "-b", "1M", "-e", "4M", "-o", script})
                .exit_code,
            0);
  EXPECT_EQ(read("job.sh").find("measure Ring LL 1048576"), std::string::npos);
  EXPECT_NE(read("job.sh").find("measure Ring Simple 1048576"), std::string::npos);
  std::string full = "noria_table,1\n";
  for (const char* choice : {"Tree,LL", "Tree,LL128", "Tree,Simple", "Ring,LL", "Ring,LL128",
                             "Ring,Simple", "NVLSTree,Simple"})
    full += std::string("all_reduce,*,2,8,*,*,*,*,") + choice + ",0,0,1,1,measured\n";
  EXPECT_EQ(
      run_tool_to_end({"noria_tune", "sweep", "--table", write("full.csv", full), "-o", script})
          .exit_code,
      1);
}

TEST_F(NoriaTuneFit, A_sweep_names_the_program_as_it_is_called_however_the_collective_is_written) {
  const std::string script = in_folder("job.sh");
  const ToolEnd end =
      run_tool_to_end({"noria_tune", "sweep", "--coll", "All_Reduce", "-o", script});
  ASSERT_EQ(end.exit_code, 0) << end.err;
  EXPECT_NE(read("job.sh").find("'all_reduce_perf'"), std::string::npos) << read("job.sh");
}

TEST_F(NoriaTuneFit, A_table_for_other_hardware_is_not_asked) {
  const auto regret = [&](const std::string& columns, const std::vector<std::string>& more = {}) {
    const std::string row = "all_reduce,64M-,2,8," + columns + ",Tree,LL,0,0,-,-,of nobody\n";
    std::vector<std::string> command{
        "noria_tune", "regret", ring(), tree(), "--table", write("t.csv", "noria_table,1\n" + row)};
    command.insert(command.end(), more.begin(), more.end());
    return run_tool_to_end(command);
  };
  for (const char* other : {"4,ib400,hopper,*", "8,ib200,hopper,*", "8,eth400,hopper,*",
                            "8,ib400,ampere,*", "8,ib400,hopper,2.30"}) {
    const ToolEnd end = regret(other);
    EXPECT_EQ(end.exit_code, 0) << other << end.out;
    EXPECT_NE(end.err.find("1 of 1 rows are not for 8 NICs of ib400, hopper, NCCL of a version"),
              std::string::npos)
        << end.err;
  }
  // Expect: what the flags and the logs say is what is asked.
  EXPECT_EQ(regret("8,ib400,hopper,*").exit_code, 1);
  EXPECT_EQ(regret("4,eth100,hopper,*", {"--nics", "4", "--link", "eth100"}).exit_code, 1);
  EXPECT_EQ(regret("8,ib200,hopper,*", {"--link", "200"}).exit_code, 1);
}

TEST_F(NoriaTuneFit, A_plot_is_one_file_with_every_curve) {
  const ToolEnd end = run_tool_to_end(
      {"noria_tune", "plot", ring(), tree(), "-o", in_folder("p.svg"), "--title", "of a test"});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  const std::string svg = read("p.svg");
  EXPECT_TRUE(svg.starts_with("<svg"));
  for (const char* part : {"of a test", "all_reduce Ring/Simple, 2 nodes of 8", "Tree/LL"})
    EXPECT_NE(svg.find(part), std::string::npos) << part;
}

TEST_F(NoriaTuneFit, A_log_that_is_not_to_be_trusted_is_refused_and_nothing_is_written) {
  const std::string whole = log_of("# NCCL_ALGO=Ring NCCL_PROTO=Simple\n", 90, 5);
  const std::string out = in_folder("t.csv");
  const auto refusal = [&](const std::string& text, std::vector<std::string> more = {}) {
    std::vector<std::string> command{"noria_tune", "fit", write("a.log", text), "-o", out};
    command.insert(command.end(), more.begin(), more.end());
    const ToolEnd end = run_tool_to_end(command);
    EXPECT_EQ(end.exit_code, 2) << end.out;
    EXPECT_EQ(lines_of(end.err).size(), 1u) << end.err;
    EXPECT_FALSE(std::ifstream(out).is_open());
    return end.err;
  };
  EXPECT_NE(refusal("nothing\n").find("a.log:1: has no row"), std::string::npos);
  // Of no collective that is known, and of none that the tuner chooses for.
  std::string nameless = log_of("", 1, 1), other = nameless;
  const size_t name = nameless.find("# Collective test"), end = nameless.find('\n', name);
  nameless.erase(name, end - name);
  other.replace(other.find("all_reduce_perf"), 15, "alltoall_perf");
  EXPECT_NE(refusal(nameless).find("a.log:19: the log does not name its program; give --coll"),
            std::string::npos)
      << refusal(nameless);
  EXPECT_NE(refusal(other).find("a.log:19: the tuner is not asked about alltoall"),
            std::string::npos);
  EXPECT_NE(refusal(nameless, {"--coll", "sum"}).find("--coll: 'sum'"), std::string::npos);
  EXPECT_NE(refusal(nameless, {"--coll", "all_gather"}).find("--nics as 8"), std::string::npos);
  EXPECT_NE(refusal(whole.substr(0, whole.size() - 40)).find("cut off"), std::string::npos);
  EXPECT_NE(refusal("# nThread 1\n" + whole).find("several programs print at once"),
            std::string::npos);
  EXPECT_NE(refusal("{\"results\": [").find("is not whole"), std::string::npos);
  EXPECT_NE(refusal(whole).find("--nics"), std::string::npos);
  EXPECT_NE(refusal(whole, {"--nics", "8"}).find("--link"), std::string::npos);
  EXPECT_NE(refusal(whole, {"--nics", "many"}).find("'many' stands where nics"), std::string::npos);
  // What is wrong with a flag is told before what is wrong with a log, and all that is missing at
  // once.
  EXPECT_NE(refusal("nothing\n", {"--nics", "many"}).find("'many' stands where nics"),
            std::string::npos);
  EXPECT_NE(refusal(whole).find("--nics as 8, --link as ib400"), std::string::npos);
  EXPECT_NE(refusal(whole, {"--nics", "8", "--link", "*", "--nccl-model"}).find("a rate"),
            std::string::npos);
  EXPECT_NE(refusal(whole, {"--algorithm", "Rong"}).find("--algorithm: 'Rong'"), std::string::npos);
  EXPECT_NE(refusal(whole, {"--nics", "8,8"}).find("--nics"), std::string::npos);
}

TEST_F(NoriaTuneFit, Logs_of_one_size_give_no_table_and_say_that_a_line_takes_two) {
  std::string text = log_of("# NCCL_ALGO=Ring NCCL_PROTO=Simple\n", 90, 5);
  const size_t second = text.find("\n32 8 float");
  text.erase(second, text.find("# Avg") - second - 1);
  const ToolEnd end = run_tool_to_end({"noria_tune", "fit", write("a.log", text), "--nics", "8",
                                       "--link", "ib400", "-o", in_folder("t.csv")});
  EXPECT_EQ(end.exit_code, 2);
  EXPECT_NE(end.err.find("would have no row: no choice was measured at two sizes"),
            std::string::npos)
      << end.err;
}

TEST_F(NoriaTuneFit, Rows_are_scaled_to_other_nodes_and_other_ranks_of_a_node) {
  const ToolEnd end = run_tool_to_end({"noria_tune", "fit", ring(), "--nics", "4", "--link",
                                       "ib400", "--up-to-nodes", "16", "--for-ranks-per-node", "4",
                                       "-o", in_folder("t.csv")});
  EXPECT_EQ(end.exit_code, 0) << end.err;
  const std::string table = read("t.csv");
  EXPECT_NE(table.find(",2,8,4,ib400,"), std::string::npos) << table;
  EXPECT_NE(table.find(",12-22,4,4,ib400,"), std::string::npos) << table;
  EXPECT_NE(table.find("modelled at 16 nodes of 4 from 2 of 8 in ring.log table 1"),
            std::string::npos)
      << table;
  EXPECT_EQ(run_tool_to_end({"noria_tune", "check", in_folder("t.csv")}).exit_code, 0);
  // For nodes with other NICs than those that were measured there are no measured rows.
  EXPECT_EQ(run_tool_to_end({"noria_tune", "fit", ring(), "--nics", "3-4", "--measured-nics", "8",
                             "--link", "ib400", "--up-to-nodes", "4", "-o", in_folder("n.csv")})
                .exit_code,
            0);
  EXPECT_NE(read("n.csv").find("modelled at 2 nodes with 4 NICs from 2 with 8 NICs in ring.log"),
            std::string::npos)
      << read("n.csv");
  EXPECT_EQ(read("n.csv").find(",ring.log"), std::string::npos) << read("n.csv");
  // The model wants a rate, and other ranks want other nodes.
  EXPECT_EQ(run_tool_to_end(
                {"noria_tune", "fit", ring(), "--nics", "4", "--link", "*", "--up-to-nodes", "16"})
                .exit_code,
            2);
  EXPECT_EQ(run_tool_to_end({"noria_tune", "fit", ring(), "--nics", "4", "--link", "ib400",
                             "--for-ranks-per-node", "4"})
                .exit_code,
            2);
}

TEST_F(NoriaTuneFit, The_tables_that_come_with_noria_are_well) {
  size_t tables = 0;
  for (const auto& entry : std::filesystem::directory_iterator(NORIA_TABLES)) {
    const ToolEnd end = run_tool_to_end({"noria_tune", "check", entry.path().string()});
    EXPECT_EQ(end.exit_code, 0) << end.out << end.err;
    ++tables;
  }
  EXPECT_EQ(tables, 3u);
}

TEST_F(NoriaTuneFit, Bad_usage_is_one_line_and_exit_2) {
  for (const std::vector<std::string>& command : std::vector<std::vector<std::string>>{
           {"noria_tune", "fit"},
           {"noria_tune", "fit", "/nowhere/x"},
           {"noria_tune", "plot", ring()},
           {"noria_tune", "regret", ring()},
           {"noria_tune", "regret", ring(), "--table", "/nowhere/x"},
           {"noria_tune", "sweep"},
           {"noria_tune", "sweep", "--coll", "alltoall", "-o", "x"},
           {"noria_tune", "sweep", "-b", "2M", "-e", "1M", "-o", "x"},
           {"noria_tune", "sweep", "-b", "5", "-e", "7", "-o", "x"},
           {"noria_tune", "sweep", "-b", "768M", "-e", "800M", "-o", "x"},
           {"noria_tune", "regret", ring(), tree(), "--link", "ib"},
           {"noria_tune", "sweep", "--nodes", "1", "--ranks-per-node", "1", "-o", "x"},
           {"noria_tune", "sweep", "--launcher", "ssh", "-o", "x"},
           {"noria_tune", "sweep", "--table", "/nowhere/x", "-o", "x"}}) {
    const ToolEnd end = run_tool_to_end(command);
    EXPECT_EQ(end.exit_code, 2) << command[1];
    EXPECT_EQ(lines_of(end.err).size(), 1u) << end.err;
  }
  for (const char* command : {"fit", "plot", "regret", "sweep"})
    EXPECT_EQ(run_tool_to_end({"noria_tune", command, "--help"}).exit_code, 0);
}

}  // namespace
}  // namespace noria::perf
