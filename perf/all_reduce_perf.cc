// all_reduce_perf: time and bus bandwidth of noria_all_reduce, in the manner of nccl-tests.

#include "perf/collective_bench.hpp"
#include "perf/command_line.hpp"
#include "perf/local_ranks.hpp"
#include "perf/nccl_tests_json.hpp"

namespace noria::perf {
namespace {

constexpr const char* kName = "all_reduce_perf";
constexpr int kDefaultLocalRanks = 2;  // a ring of one measures nothing

noria_status call(noria_comm* comm, const void* in, void* out, uint64_t count, noria_dtype dtype,
                  noria_op op, noria_work** work) {
  return noria_all_reduce(comm, in, out, count, dtype, op, nullptr, work);
}

// Each rank sends and receives this many times the size.
double bus_factor(int ranks) { return 2.0 * (ranks - 1) / ranks; }

constexpr CollectiveKind kKind{kName, "all_reduce", &call, &bus_factor};

int body(int argc, char** argv) {
  BenchOptions options;
  CLI::App app(
      "Times noria_all_reduce between ranks, in the manner of nccl-tests.\n"
      "-g N starts N ranks on this machine. Without -g, and with RANK and WORLD_SIZE set as "
      "torchrun "
      "does, it is one rank of that job.\n"
      "Exit: 0 all right, 1 wrong result, 2 usage, 3 environment, 4 a rank was lost or time ran "
      "out.\n"
      "GB is 10^9 bytes.",
      kName);
  add_bench_flags(app, options);
  int root = -1;
  app.add_option("-r,--root", root, "taken as in nccl-tests; an all-reduce has no root")
      ->check(whole_number(0, 1023));
  if (parse_command_line(app, argc, argv)) return 0;
  options.arguments.assign(argv, argv + argc);

  const Params params = params_of_environment();
  const bool launched =
      options.local_ranks == 0 && !params.rank.empty() && !params.world_size.empty();
  if (options.local_ranks == 0) options.local_ranks = launched ? 1 : kDefaultLocalRanks;
  settle(options);
  require_writable(options.json_file);
  if (launched) {
    Communicator comm;
    return static_cast<int>(run_bench(kKind, options, comm, ""));
  }
  const std::string note = limit_to_memory(options, options.local_ranks);
  const auto result = run_local_ranks(
      {.tool = kName, .size = options.local_ranks, .environment = {}}, [&](LocalRank& rank) {
        Communicator comm(rank);
        return run_bench(kKind, options, comm, note);
      });
  return static_cast<int>(result.exit);
}

}  // namespace
}  // namespace noria::perf

int main(int argc, char** argv) {
  return noria::perf::run_tool(noria::perf::kName, &noria::perf::body, argc, argv);
}
