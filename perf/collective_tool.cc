#include "perf/collective_tool.hpp"

#include <cstdlib>
#include <memory>
#include <optional>
#include <string>

#include "perf/command_line.hpp"
#include "perf/cuda_lane.hpp"
#include "perf/local_ranks.hpp"
#include "perf/nccl_tests_json.hpp"

namespace noria::perf {
namespace {

constexpr int kDefaultLocalRanks = 2;  // a ring of one measures nothing

// Of this host where the launcher says so, else of all.
int launched_rank(const Params& params) {
  for (const std::string* rank :
       {&params.local_rank, &params.rank, &params.mpi_rank, &params.slurm_rank})
    if (!rank->empty()) return std::atoi(rank->c_str());
  return 0;
}

// The GPU goes before the communicator, and stays behind it. `shows` is null where another process
// shows this one's failure.
template <class Join>
Exit run_rank(const CollectiveKind& kind, const BenchOptions& options, const Params& params,
              int rank_here, const char* shows, const std::string& note, const Join& join) {
  const uint64_t bytes = options.sweep.max_bytes;
  std::unique_ptr<CudaLane> lane;
  if (options.is_on_device()) lane = CudaLane::of_rank(params, rank_here);
  std::optional<int32_t> gpu;
  if (lane != nullptr) gpu = lane->device().ordinal();
  Communicator comm = join(gpu);
  const auto bench = [&] {
    if (lane == nullptr) return run_bench(kind, options, comm, *host_memory(bytes), "", note);
    return run_bench(kind, options, comm, *device_memory(*lane, bytes), lane->device().name(),
                     note);
  };
  return shows != nullptr ? show_failure_first(shows, bench) : bench();
}

int body(const CollectiveKind& kind, int argc, char** argv) {
  BenchOptions options;
  CLI::App app(std::string("Times noria_") + kind.collective +
                   " between ranks, in the manner of nccl-tests.\n"
                   "-g N starts N ranks on this machine. Without -g it is one rank of the job, if "
                   "torchrun, mpirun or srun started it.\n"
                   "Exit: 0 all right, 1 wrong result, 2 usage, 3 environment, 4 a rank was lost "
                   "or time ran out.\n"
                   "GB is 10^9 bytes.",
               kind.tool);
  add_bench_flags(app, options, kind.reduces());
  int root = -1;
  app.add_option("-r,--root", root, "taken as in nccl-tests; this collective has no root")
      ->check(whole_number(0, 1023));
  if (parse_command_line(app, argc, argv)) return 0;
  options.arguments.assign(argv, argv + argc);

  const Params params = params_of_environment();
  const bool launched = options.local_ranks == 0 && has_launcher(params);
  if (options.local_ranks == 0) options.local_ranks = launched ? 1 : kDefaultLocalRanks;
  settle(options);
  require_writable(options.json_file);
  if (launched)
    return static_cast<int>(run_rank(kind, options, params, launched_rank(params), kind.tool, "",
                                     [](auto gpu) { return Communicator(gpu); }));
  const std::string note = limit_to_memory(options, options.local_ranks);
  const auto result = run_local_ranks(
      {.tool = kind.tool, .size = options.local_ranks, .environment = {}}, [&](LocalRank& rank) {
        return run_rank(kind, options, params, rank.rank(), nullptr, note,
                        [&rank](auto gpu) { return Communicator(rank, gpu); });
      });
  return static_cast<int>(result.exit);
}

}  // namespace

int run_collective_tool(const CollectiveKind& kind, int argc, char** argv) {
  return run_tool(
      kind.tool, [&kind](int count, char** words) { return body(kind, count, words); }, argc, argv);
}

}  // namespace noria::perf
