// noria_tune: works on the tables that NCCL's tuner chooses by. A command a file: tune_*.cc.

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "perf/command_line.hpp"
#include "perf/tune_commands.hpp"

namespace noria::perf {
namespace {

constexpr const char* kName = "noria_tune";

struct Command {
  std::string_view name;
  int (*run)(int argc, char** argv);
  const char* says;
};

constexpr Command kCommands[]{
    {"buckets", &tune_buckets, "which bucket size and schedule a model wants on a cluster"},
    {"check", &tune_check, "whether tables are understood, and what cannot be meant in them"},
    {"explain", &tune_explain, "which algorithm and protocol an operation gets, and why"},
    {"fit", &tune_fit, "a table from what nccl-tests measured, and how well it fits"},
    {"plot", &tune_plot, "bus bandwidth by size, measured and modelled, as SVG"},
    {"regret", &tune_regret, "how much slower a table's choices are than the best measured"},
    {"rows", &tune_rows, "what nccl-tests measured, one line a row"},
    {"sweep", &tune_sweep, "the job script that measures what a table lacks"},
};

void print_help() {
  std::printf(
      "Works on the tables by which noria's tuner chooses for NCCL (plugin/tuner/README.md).\n"
      "Usage: noria_tune COMMAND ...; noria_tune COMMAND --help says what each takes.\n\n");
  for (const Command& command : kCommands)
    std::printf("  %-8s  %s\n", std::string(command.name).c_str(), command.says);
}

std::string names() {
  std::string text;
  for (const Command& command : kCommands)
    text += (text.empty() ? "" : ", ") + std::string(command.name);
  return text;
}

int body(int argc, char** argv) {
  if (argc < 2) throw usage_error("takes a command: " + names());
  const std::string word = argv[1];
  if (word == "-h" || word == "--help") {
    print_help();
    return 0;
  }
  const auto* const command = std::find_if(std::begin(kCommands), std::end(kCommands),
                                           [&](const Command& each) { return each.name == word; });
  if (command == std::end(kCommands))
    throw usage_error("'" + word + "' is not what this tool does; it takes a command: " + names());
  return command->run(argc - 1, argv + 1);
}

}  // namespace
}  // namespace noria::perf

int main(int argc, char** argv) {
  return noria::perf::run_tool(noria::perf::kName, &noria::perf::body, argc, argv);
}
