#include "perf/collective_tool.hpp"

#include <string>

#include "perf/command_line.hpp"
#include "perf/local_ranks.hpp"
#include "perf/nccl_tests_json.hpp"

namespace noria::perf {
namespace {

constexpr int kDefaultLocalRanks = 2;  // a ring of one measures nothing

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
  if (launched) {
    Communicator comm;
    return static_cast<int>(run_bench(kind, options, comm, ""));
  }
  const std::string note = limit_to_memory(options, options.local_ranks);
  const auto result = run_local_ranks(
      {.tool = kind.tool, .size = options.local_ranks, .environment = {}}, [&](LocalRank& rank) {
        Communicator comm(rank);
        return run_bench(kind, options, comm, note);
      });
  return static_cast<int>(result.exit);
}

}  // namespace

int run_collective_tool(const CollectiveKind& kind, int argc, char** argv) {
  return run_tool(
      kind.tool, [&kind](int count, char** words) { return body(kind, count, words); }, argc, argv);
}

}  // namespace noria::perf
