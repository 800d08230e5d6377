#include "perf/sweep_script.hpp"

#include <gtest/gtest.h>

#include "base/units.hpp"

namespace noria::perf {
namespace {

using plugin::tuner::Collective;
using plugin::tuner::parse_table;
using plugin::tuner::Table;

// As "Ring/LL 8-1024".
std::vector<std::string> missing(const SweepPlan& plan, const std::string& rows = "") {
  const auto table = parse_table("noria_table,1\n" + rows, "a.csv");
  EXPECT_TRUE(table) << table.failure();
  std::vector<std::string> lines;
  for (const Run& run : missing_runs(plan, *table))
    lines.push_back(std::string(name_of(run.algorithm)) + "/" + std::string(name_of(run.protocol)) +
                    " " + std::to_string(run.first_bytes) + "-" + std::to_string(run.last_bytes));
  return lines;
}
using Lines = std::vector<std::string>;

TEST(Sweep_script, Without_a_table_every_choice_that_can_win_is_measured) {
  const SweepPlan plan{.min_bytes = 8, .max_bytes = 4_GiB};
  EXPECT_EQ(missing(plan),
            (Lines{"Tree/LL 8-134217728", "Tree/LL128 8-1073741824", "Tree/Simple 8-4294967296",
                   "Ring/LL 8-134217728", "Ring/LL128 8-1073741824", "Ring/Simple 8-4294967296",
                   "NVLSTree/Simple 8-4294967296"}));
  SweepPlan one_node = plan;
  one_node.nodes = 1;
  EXPECT_EQ(missing(one_node).back(), "NVLS/Simple 8-4294967296");
  SweepPlan gather{.collective = Collective::all_gather, .ranks_per_node = 1, .max_bytes = 8};
  EXPECT_EQ(missing(gather),
            (Lines{"Ring/LL 8-8", "Ring/LL128 8-8", "Ring/Simple 8-8", "PAT/Simple 8-8"}));
}

TEST(Sweep_script, What_a_measured_row_holds_is_not_measured_again) {
  const SweepPlan plan{.nodes = 2, .ranks_per_node = 1, .min_bytes = 1024, .max_bytes = 8192};
  const std::string all =
      "all_reduce,*,2,1,*,*,*,*,Tree,LL,0,0,1,1,x\nall_reduce,*,2,1,*,*,*,*,Tree,LL128,0,0,1,1,x\n"
      "all_reduce,*,2,1,*,*,*,*,Tree,Simple,0,0,1,1,x\n"
      "all_reduce,*,2,1,*,*,*,*,Ring,LL,0,0,1,1,x\n"
      "all_reduce,*,2,1,*,*,*,*,Ring,LL128,0,0,1,1,x\n";
  EXPECT_EQ(missing(plan, all + "all_reduce,2K-4K,2,1,*,*,*,*,Ring,Simple,0,0,1,1,measured\n"),
            (Lines{"Ring/Simple 1024-1024", "Ring/Simple 4096-8192"}));
  EXPECT_EQ(missing(plan, all + "all_reduce,*,1-4,*,*,*,*,*,Ring,Simple,0,0,1,1,measured\n"),
            Lines());
  // Of other nodes, modelled, or without a time: nobody measured it.
  for (const char* row : {"all_reduce,*,4,1,*,*,*,*,Ring,Simple,0,0,1,1,measured\n",
                          "all_reduce,*,2,1,*,*,*,*,Ring,Simple,0,0,1,1,modelled at 2 nodes\n",
                          "all_reduce,*,2,1,*,*,*,*,Ring,Simple,0,0,-,-,measured\n",
                          "all_gather,*,2,1,*,*,*,*,Ring,Simple,0,0,1,1,measured\n"})
    EXPECT_EQ(missing(plan, all + row), (Lines{"Ring/Simple 1024-8192"})) << row;
}

TEST(Sweep_script, Each_launcher_is_told_ranks_choice_and_sizes) {
  SweepPlan plan{
      .nodes = 4, .min_bytes = 8, .max_bytes = 8, .program = "/opt/it's/all_reduce_perf"};
  const std::string mpi = script_of(plan, missing_runs(plan, Table()));
  for (const char* part :
       {"#!/bin/bash\n", "mpirun -np 32 --map-by ppr:8:node", "-x NCCL_ALGO=\"$1\"",
        "measure Ring LL128 8 8\n", "'/opt/it'\\''s/all_reduce_perf'", "# NCCL_ALGO=$1"})
    EXPECT_NE(mpi.find(part), std::string::npos) << part;
  EXPECT_EQ(mpi.find("#SBATCH"), std::string::npos);
  plan.launcher = Launcher::slurm;
  const std::string slurm = script_of(plan, missing_runs(plan, Table()));
  for (const char* part : {"#SBATCH --nodes=4\n", "#SBATCH --gpus-per-node=8\n",
                           "srun --nodes=4 --ntasks-per-node=8", "NCCL_PROTO=\"$2\""})
    EXPECT_NE(slurm.find(part), std::string::npos) << part;
}

}  // namespace
}  // namespace noria::perf
