// Command lines: CLI11 with the house's manners for bad input.
//
// One line that names the flag, the value and what is accepted; for an unknown flag the nearest
// known one; exit 2. Environment variables are checked here too, before any rank is started, so
// that a bad NORIA_ value is said once and not by every rank.
//
// Threads: init only.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>

#include "base/params.hpp"
#include "perf/exit_codes.hpp"

namespace noria::perf {

// Parses, or throws ToolError. True: --help was asked for and printed, nothing is left to do.
bool parse_command_line(CLI::App& app, int argc, const char* const* argv);

// The nearest of the app's flags to an unknown one.
std::string nearest_flag(const CLI::App& app, const std::string& unknown);

// NORIA_ variables and those of a launcher; throws ToolError with load_params()'s line.
Params params_of_environment();

// "takes 1 to 1024" checks; the failure names flag, value and range.
CLI::Validator whole_number(uint64_t least, uint64_t most);
CLI::Validator real_number(double least, double most);
// A size as in sizes.hpp, within [least, most] bytes. For transform(): the text becomes the count.
CLI::Validator byte_size(uint64_t least, uint64_t most);

// Not empty: a file named by a variable that is not set would be left out in silence.
CLI::Validator file_name();

// Runs a tool's main function and turns what it throws into a line and an exit code.
int run_tool(const char* name, const std::function<int(int argc, char** argv)>& body, int argc,
             char** argv);

}  // namespace noria::perf
