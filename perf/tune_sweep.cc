// noria_tune sweep: the job script that measures what a table lacks.

#include <bit>
#include <cstdio>

#include "base/units.hpp"
#include "perf/command_line.hpp"
#include "perf/nccl_tests_json.hpp"
#include "perf/sweep_script.hpp"
#include "perf/tune_commands.hpp"

namespace noria::perf {
namespace {

constexpr const char* kHelp =
    "Writes the job script that measures what a table lacks: each algorithm and protocol that NCCL "
    "has for the collective, at the sizes of which the table has no measurement. Its logs are what "
    "noria_tune fit reads.\n"
    "  noria_tune sweep --nodes 4 --table ours.csv --launcher slurm -o job.sh && sbatch job.sh\n"
    "Exit: 0 all right, 1 the table lacks nothing, and no script is written, 2 usage.";

namespace tuner = plugin::tuner;

struct Flags {
  SweepPlan plan{.max_bytes = 8_GiB};
  std::string table, collective = "all_reduce", launcher = "mpirun", out;
};

void settle(Flags* flags) {
  flags->plan.collective = word_of<tuner::Collective>("--coll", flags->collective);
  flags->plan.launcher = flags->launcher == "slurm" ? Launcher::slurm : Launcher::mpirun;
  if (flags->plan.min_bytes > flags->plan.max_bytes) throw usage_error("-b: is larger than -e");
  // Sizes go by the factor 2, and a row's edge lies between two of them.
  flags->plan.min_bytes = std::bit_ceil(flags->plan.min_bytes);
  if (flags->plan.min_bytes > flags->plan.max_bytes)
    throw usage_error("-b: there is no power of two from here to -e, and sizes are such");
  if (flags->plan.nodes * flags->plan.ranks_per_node < 2)
    throw usage_error("--nodes: one rank sends nothing");
  if (flags->plan.program.empty())
    flags->plan.program = std::string(name_of(flags->plan.collective)) + "_perf";
}

}  // namespace

int tune_sweep(int argc, char** argv) {
  constexpr uint64_t kMostBytes = 1_GiB * 1024, kMostCount = 65536;
  Flags flags;
  SweepPlan& plan = flags.plan;
  CLI::App app(kHelp, "noria_tune sweep");
  app.add_option("-o,--out", flags.out, "the script to write")->required()->check(file_name());
  app.add_option("--table", flags.table, "what has been measured; without it nothing has")
      ->check(file_name());
  app.add_option("--coll", flags.collective, "the collective")->capture_default_str();
  app.add_option("--nodes", plan.nodes, "nodes")
      ->check(whole_number(1, kMostCount))
      ->capture_default_str();
  app.add_option("--ranks-per-node", plan.ranks_per_node, "ranks, and GPUs, of a node")
      ->check(whole_number(1, kMostCount))
      ->capture_default_str();
  app.add_option("-b,--minbytes", plan.min_bytes, "the smallest size; up to a power of two")
      ->transform(byte_size(1, kMostBytes))
      ->capture_default_str();
  app.add_option("-e,--maxbytes", plan.max_bytes, "the largest size")
      ->transform(byte_size(1, kMostBytes))
      ->capture_default_str();
  app.add_option("--launcher", flags.launcher, "mpirun or slurm")
      ->check(CLI::IsMember({"mpirun", "slurm"}))
      ->capture_default_str();
  app.add_option("--program", plan.program, "nccl-tests' program on the nodes; its plain name");
  if (parse_command_line(app, argc, argv)) return 0;
  settle(&flags);

  tuner::Table table;
  if (!flags.table.empty()) {
    auto read = tuner::read_table(flags.table);
    if (!read) throw usage_error(read.failure());
    table = std::move(*read);
  }
  const std::vector<Run> runs = missing_runs(plan, table);
  if (runs.empty()) {
    std::printf("%s: lacks nothing of this communicator\n", printable(flags.table).c_str());
    return static_cast<int>(Exit::wrong_result);
  }
  write_file(flags.out, script_of(plan, runs));
  std::printf("%s: %zu runs\n", printable(flags.out).c_str(), runs.size());
  return 0;
}

}  // namespace noria::perf
