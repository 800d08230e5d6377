#include "perf/comparison.hpp"

#include <unistd.h>

#include <cstdio>

#include "perf/command_line.hpp"
#include "perf/nccl_tests_json.hpp"

namespace noria::perf {

void Comparison::add_options(CLI::App& app) {
  app.add_option("--rounds", rounds, "rounds (5)")->check(whole_number(1, 1000));
  app.add_option("--seconds", seconds, "length of each run (1)")->check(real_number(0.01, 600));
  app.add_option("--results", results, "append the table to this file, as RESULTS.md has it");
}

void Comparison::show_round(const std::string& what, int round) const {
  if (::isatty(STDERR_FILENO) != 0)
    std::fprintf(stderr, "\r\033[K%s: round %d of %d\r", what.c_str(), round + 1, rounds);
}

void Comparison::print(const std::string& table) const {
  std::fputs(table.c_str(), stdout);
  append_results(results, table);
}

}  // namespace noria::perf
