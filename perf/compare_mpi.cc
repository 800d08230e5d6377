// compare_mpi: noria's all-reduce against OpenMPI's over shared memory, on this machine, in turn.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "perf/all_reduce_run.hpp"
#include "perf/child_program.hpp"
#include "perf/command_line.hpp"
#include "perf/comparison.hpp"
#include "perf/machine.hpp"
#include "perf/nccl_tests_json.hpp"
#include "perf/sizes.hpp"
#include "perf/stats.hpp"

namespace noria::perf {
namespace {

constexpr const char* kName = "compare_mpi";
constexpr int kPilotIterations = 20;
constexpr int kWarmups = 5;

struct Options : Comparison {
  std::vector<std::string> sizes{"64K", "1M", "25M"};
  int ranks = 2;
};

// Those that run in turn: OpenMPI, noria as users have it, and noria held to one way of fetching.
enum Contender : size_t { kMpi = 0, kNoria = 1, kRead = 2, kMessage = 3 };
constexpr std::array<Contender, 4> kAll{kMpi, kNoria, kRead, kMessage};
constexpr std::array<const char*, 4> kNames{"OpenMPI", "noria", "reads", "messages"};
constexpr std::array<const char*, 4> kFetch{"", "auto", "read", "message"};

struct Command {
  std::vector<std::string> words;
  std::vector<std::pair<std::string, std::string>> environment;
};

// Neither is bound to cores; both use one buffer in and one out, floats, sum.
Command command_of(Contender who, const Options& options, const std::string& bytes,
                   int64_t iterations) {
  if (who == kMpi)
    return {{"mpirun", "--allow-run-as-root", "--oversubscribe", "--bind-to", "none", "--mca",
             "pml", "ob1", "--mca", "btl", "vader,self", "-n", std::to_string(options.ranks),
             own_folder() + "mpi_all_reduce_bench", bytes, std::to_string(iterations),
             std::to_string(kWarmups)},
            {}};
  return {all_reduce_command(options.ranks, bytes, iterations),
          {{"NORIA_RING_FETCH", kFetch[who]}}};
}

double time_us(Contender who, const Options& options, const std::string& bytes,
               int64_t iterations) {
  const Command command = command_of(who, options, bytes, iterations);
  const auto limit = static_cast<Nanoseconds>(options.seconds * 60e9) + 60_s;
  const ProgramEnd end = run_program(command.words, command.environment, limit);
  if (end.exit_code != 0)
    throw ToolError(Exit::environment, std::string(kNames[who]) + " failed with exit code " +
                                           std::to_string(end.exit_code) + ": " +
                                           command_text(command.words, command.environment));
  const auto json = nlohmann::json::parse(end.output, nullptr, false);
  if (json.is_number()) return json.get<double>();
  if (const auto us = all_reduce_us(end.output)) return *us;
  throw ToolError(Exit::environment, std::string(kNames[who]) + " printed no time: " + end.output);
}

struct SizeResult {
  uint64_t bytes = 0;
  std::array<double, 4> median_us{};
  std::array<double, 4> ratio{};  // MPI's time over the contender's: median of the rounds' ratios
};

SizeResult measure(const Options& options, uint64_t bytes) {
  const std::string text = std::to_string(bytes);
  std::array<int64_t, 4> iterations{};
  for (const Contender who : kAll) {
    const double pilot = time_us(who, options, text, kPilotIterations);
    iterations[who] = std::max<int64_t>(std::llround(options.seconds * 1e6 / std::max(pilot, 0.1)),
                                        kPilotIterations);
  }
  std::array<std::vector<double>, 4> times, ratios;
  for (int round = 0; round < options.rounds; ++round) {
    options.show_round(text + " bytes", round);
    for (const Contender who : kAll) {
      times[who].push_back(time_us(who, options, text, iterations[who]));
      ratios[who].push_back(times[kMpi].back() / times[who].back());
    }
  }
  SizeResult result{.bytes = bytes};
  for (const Contender who : kAll) {
    result.median_us[who] = median(times[who]);
    result.ratio[who] = median(ratios[who]);
  }
  return result;
}

double bus_gb_s(const SizeResult& r, Contender who, int ranks) {
  return static_cast<double>(r.bytes) * 1e-9 * 2 * (ranks - 1) / ranks / (r.median_us[who] * 1e-6);
}

// A column of times and one of bus bandwidths for each, then the ratios.
std::string table_of(const std::vector<SizeResult>& results, int ranks) {
  std::string head = "| bytes |";
  std::string rule = "|---:|";
  const auto add_column = [&](const std::string& title) {
    head += " " + title + " |";
    rule += "---:|";
  };
  for (const Contender who : kAll) add_column(std::string(kNames[who]) + " us");
  for (const Contender who : kAll) add_column(std::string(kNames[who]) + " GB/s");
  for (const Contender who : {kNoria, kRead, kMessage})
    add_column(std::string(kNames[who]) + " / OpenMPI");

  std::string text = head + "\n" + rule + "\n";
  const auto add_number = [&text](const char* format, double value) {
    std::array<char, 32> cell{};
    std::snprintf(cell.data(), cell.size(), format, value);
    text += std::string(" ") + cell.data() + " |";
  };
  for (const SizeResult& r : results) {
    text += "| " + std::to_string(r.bytes) + " |";
    for (const Contender who : kAll) add_number("%.1f", r.median_us[who]);
    for (const Contender who : kAll) add_number("%.2f", bus_gb_s(r, who, ranks));
    for (const Contender who : {kNoria, kRead, kMessage}) add_number("%.2f x", r.ratio[who]);
    text += "\n";
  }
  return text;
}

std::string report_of(const Options& options, const std::vector<SizeResult>& results) {
  std::string text =
      "All-reduce against OpenMPI over shared memory\n\n" + std::to_string(options.ranks) +
      " ranks, f32 sum, out of place, bus bandwidth; medians of " + std::to_string(options.rounds) +
      " rounds in turn, each about " + detail::number_text(options.seconds) + " s. " + time_text() +
      ", " + machine_text() + ".\n\n" + table_of(results, options.ranks) + "\n";
  for (const Contender who : {kMpi, kNoria}) {
    const Command command = command_of(who, options, "BYTES", 0);
    text += std::string("    ") + command_text(command.words, command.environment) + "\n";
  }
  return text +
         "\n(iterations are chosen so that a run takes that long; NORIA_RING_FETCH=read and "
         "NORIA_RING_FETCH=message for the other columns)\n";
}

int body(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Times OpenMPI's all-reduce over shared memory, noria's, and noria's by reads and by "
      "messages "
      "alone, in turn; prints medians and ratios.\nExit: 0, 2 usage, 3 a program is missing or "
      "failed.",
      kName);
  app.add_option("--sizes", options.sizes, "bytes (64K,1M,25M)")
      ->delimiter(',')
      ->transform(byte_size(4, uint64_t{1} << 33));
  app.add_option("-g", options.ranks, "ranks (2)")->check(whole_number(2, 1024));
  options.add_options(app);
  if (parse_command_line(app, argc, argv)) return 0;
  params_of_environment();
  require_writable(options.results);
  if (::access((own_folder() + "mpi_all_reduce_bench").c_str(), X_OK) != 0)
    throw ToolError(
        Exit::environment,
        "mpi_all_reduce_bench was not built: install openmpi-bin and libopenmpi-dev, then "
        "build again");
  std::vector<SizeResult> results;
  for (const std::string& size : options.sizes)
    results.push_back(measure(options, parse_size(size).value_or(0)));
  options.print(report_of(options, results));
  return 0;
}

}  // namespace
}  // namespace noria::perf

int main(int argc, char** argv) {
  return noria::perf::run_tool(noria::perf::kName, &noria::perf::body, argc, argv);
}
