// Comparison: what the tools have in common that time programs in turn.
//
// Threads: one.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

namespace noria::perf {

struct Comparison {
  int rounds = 5;
  double seconds = 1;   // of each run
  std::string results;  // the file that the table is appended to; empty for none

  // --rounds, --seconds, --results
  void add_options(CLI::App& app);
  // On a terminal, in the line that the next one overwrites.
  void show_round(const std::string& what, int round) const;
  // To standard output, and to the file.
  void print(const std::string& table) const;
};

}  // namespace noria::perf
