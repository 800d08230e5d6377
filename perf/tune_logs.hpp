// What the commands of noria_tune that read measurements have in common: logs, and the flags that
// say what a log does not.
//
// Threads: init only.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "perf/tune_curves.hpp"

namespace noria::perf {

struct LogFlags {
  std::vector<std::string> logs;
  Assumed assumed;
  std::string collective, algorithm, protocol;  // as given
};

// LOG..., --coll, --nodes, --ranks-per-node, --algorithm, --protocol.
void add_log_flags(CLI::App& app, LogFlags& flags);

// Reads the logs, text or JSON. Throws ToolError (usage) as read_curves() does, and where there is
// nothing that the tuner chooses for, with the first table and why it is none.
Measured measured_of(LogFlags& flags);
// On standard error, what of them is not used.
void tell_left_out(const Measured& measured);

}  // namespace noria::perf
