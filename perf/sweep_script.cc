#include "perf/sweep_script.hpp"

#include <algorithm>

#include "base/units.hpp"
#include "base/value_text.hpp"

namespace noria::perf {
namespace {

using plugin::tuner::Algorithm;
using plugin::tuner::Protocol;
using plugin::tuner::Row;
namespace words = plugin::tuner;

constexpr uint64_t kMostLl = 128_MiB, kMostLl128 = 1_GiB;

bool is_measured(const Row& row) { return row.is_predicted && !row.is_modelled; }

bool is_for(const Row& row, const SweepPlan& plan) {
  return row.collective == plan.collective && row.nodes.has(plan.nodes) &&
         row.ranks_per_node.has(plan.ranks_per_node);
}

bool is_worth_a_run(const SweepPlan& plan, Algorithm algorithm, Protocol protocol) {
  if (!words::is_possible(plan.collective, algorithm) || !words::is_possible(algorithm, protocol))
    return false;
  switch (algorithm) {
    case Algorithm::collnet_direct:
    case Algorithm::collnet_chain: return false;
    // NVLS is of one node; over several NCCL has it for CollNet's switches alone.
    case Algorithm::nvls: return plan.nodes == 1 && plan.ranks_per_node > 1;
    case Algorithm::nvls_tree: return plan.nodes > 1 && plan.ranks_per_node > 1;
    case Algorithm::pat: return plan.nodes > 1 && plan.ranks_per_node == 1;
    case Algorithm::tree:
    case Algorithm::ring: return true;
  }
  return false;
}

uint64_t most_bytes(const SweepPlan& plan, Protocol protocol) {
  if (protocol == Protocol::ll) return std::min(plan.max_bytes, kMostLl);
  if (protocol == Protocol::ll128) return std::min(plan.max_bytes, kMostLl128);
  return plan.max_bytes;
}

std::string quoted(const std::string& text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string start_of(const SweepPlan& plan) {
  const std::string ranks = std::to_string(plan.nodes * plan.ranks_per_node);
  const std::string each = std::to_string(plan.ranks_per_node);
  if (plan.launcher == Launcher::slurm)
    return "srun --nodes=" + std::to_string(plan.nodes) + " --ntasks-per-node=" + each +
           " --export=ALL,NCCL_ALGO=\"$1\",NCCL_PROTO=\"$2\"";
  return "mpirun -np " + ranks + " --map-by ppr:" + each +
         ":node ${HOSTFILE:+--hostfile \"$HOSTFILE\"} -x NCCL_ALGO=\"$1\" -x NCCL_PROTO=\"$2\"";
}

}  // namespace

std::vector<Run> missing_runs(const SweepPlan& plan, const plugin::tuner::Table& table) {
  std::vector<Run> runs;
  for (size_t cell = 0; cell < words::kCells; ++cell) {
    const auto algorithm = words::algorithm_of(cell);
    const auto protocol = words::protocol_of(cell);
    if (!is_worth_a_run(plan, algorithm, protocol)) continue;
    const auto is_known = [&](uint64_t bytes) {
      return std::any_of(table.rows.begin(), table.rows.end(), [&](const Row& row) {
        return row.cell() == cell && is_for(row, plan) && is_measured(row) && row.bytes.has(bytes);
      });
    };
    bool is_open = false;
    for (uint64_t bytes = plan.min_bytes; bytes <= most_bytes(plan, protocol); bytes *= 2) {
      if (is_known(bytes)) {
        is_open = false;
        continue;
      }
      if (!is_open) runs.push_back({algorithm, protocol, bytes, bytes});
      is_open = true;
      runs.back().last_bytes = bytes;
    }
  }
  return runs;
}

std::string script_of(const SweepPlan& plan, const std::vector<Run>& runs) {
  const std::string collective(words::name_of(plan.collective));
  std::string text = "#!/bin/bash\n";
  if (plan.launcher == Launcher::slurm)
    text += "#SBATCH --job-name=noria_sweep\n#SBATCH --nodes=" + std::to_string(plan.nodes) +
            "\n#SBATCH --ntasks-per-node=" + std::to_string(plan.ranks_per_node) +
            "\n#SBATCH --gpus-per-node=" + std::to_string(plan.ranks_per_node) +
            "\n#SBATCH --exclusive\n";
  text += "# Measures " + collective + " on " + std::to_string(plan.nodes) + " nodes of " +
          std::to_string(plan.ranks_per_node) +
          " ranks, where a table of noria's tuner has no measurement.\n";
  text += "# Made by noria_tune sweep. Usage: " +
          std::string(plan.launcher == Launcher::slurm ? "sbatch" : "HOSTFILE=hosts bash") +
          " THIS [FOLDER]; the logs go to FOLDER.\n";
  text += "set -u\nfolder=${1:-noria_sweep}\nprogram=${PROGRAM:-" + quoted(plan.program) +
          "}\nmkdir -p \"$folder\" || exit 3\nfailed=0\n\n";
  // The choice stands in the log, for nccl-tests does not print it.
  text +=
      "measure() {  # algorithm, protocol, first and last size\n"
      "  local log=\"$folder/" +
      collective +
      "-$1-$2-$3.log\"\n"
      "  echo \"# NCCL_ALGO=$1 NCCL_PROTO=$2\" > \"$log\"\n"
      "  if ! " +
      start_of(plan) +
      " \\\n      \"$program\" -b \"$3\" -e \"$4\" -f 2 -g 1 >> \"$log\" 2>&1; then\n"
      "    mv \"$log\" \"$log.failed\"\n    failed=$((failed + 1))\n"
      "    echo \"$1/$2 from $3 to $4 failed: $log.failed says why\" >&2\n  fi\n}\n\n";
  for (const Run& run : runs)
    text += "measure " + std::string(words::name_of(run.algorithm)) + " " +
            std::string(words::name_of(run.protocol)) + " " + std::to_string(run.first_bytes) +
            " " + std::to_string(run.last_bytes) + "\n";
  text += "\necho \"" + std::to_string(runs.size()) +
          " runs, $failed failed; now: noria_tune fit $folder/*.log --nics N --link ib400 -o "
          "table.csv\"\n[ \"$failed\" -eq 0 ]\n";
  return text;
}

}  // namespace noria::perf
