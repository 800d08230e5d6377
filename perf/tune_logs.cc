#include "perf/tune_logs.hpp"

#include <cstdio>

#include "perf/command_line.hpp"
#include "perf/log_file.hpp"
#include "perf/nccl_json_log.hpp"
#include "perf/tune_commands.hpp"

namespace noria::perf {

namespace words = plugin::tuner;

void add_log_flags(CLI::App& app, LogFlags& flags) {
  constexpr uint64_t kMost = 1'000'000;
  app.add_option("LOG", flags.logs, "output of nccl-tests, as text or as its JSON (-J)")
      ->required();
  app.add_option("--nodes", flags.assumed.nodes, "nodes, where a log does not say")
      ->check(whole_number(1, kMost));
  app.add_option("--ranks-per-node", flags.assumed.ranks_per_node,
                 "ranks of a node, where a log does not say")
      ->check(whole_number(1, kMost));
  app.add_option("--coll", flags.collective,
                 "the collective, where a log does not name its program");
  app.add_option("--algorithm", flags.algorithm,
                 "what NCCL chose, where neither NCCL_ALGO nor its own log says so");
  app.add_option("--protocol", flags.protocol, "likewise, for NCCL_PROTO");
}

Measured measured_of(LogFlags& flags) {
  if (!flags.collective.empty())
    flags.assumed.collective = word_of<words::Collective>("--coll", flags.collective);
  if (!flags.algorithm.empty())
    flags.assumed.algorithm = word_of<words::Algorithm>("--algorithm", flags.algorithm);
  if (!flags.protocol.empty())
    flags.assumed.protocol = word_of<words::Protocol>("--protocol", flags.protocol);
  std::vector<NamedLog> logs;
  for (const std::string& path : flags.logs)
    logs.push_back({path, parse_nccl_log(read_log(path), path)});
  Measured measured = read_curves(logs, flags.assumed);
  if (measured.curves.empty())
    throw usage_error((measured.left_out.empty() ? flags.logs.front() + ":1: has no time above zero"
                                                 : measured.left_out.front()) +
                      ": nothing here is of what the tuner chooses for");
  return measured;
}

void tell_left_out(const Measured& measured) {
  for (const std::string& line : measured.left_out)
    std::fprintf(stderr, "noria_tune: left out: %s\n", printable(line).c_str());
}

}  // namespace noria::perf
