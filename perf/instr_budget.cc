// instr_budget: how many instructions a message or a call costs, against the budget that a file
// gives it. Counted by callgrind: on a shared machine instructions repeat where nanoseconds do not.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "perf/budget.hpp"
#include "perf/budget_operations.hpp"
#include "perf/callgrind.hpp"
#include "perf/child_program.hpp"
#include "perf/command_line.hpp"

namespace noria::perf {
namespace {

constexpr const char* kName = "instr_budget";
constexpr const char* kDevice = "libnoria-softverbs.so";
constexpr const char* kGpu = "libnoria-cuda-standin.so";  // built with the tests
constexpr Nanoseconds kLimit = 120_s;                     // of one operation; each takes seconds

struct Options {
  std::string budget = "perf/instr_budget.txt";
  std::string only;
  std::string run;
  double margin_percent = 0;
  bool json = false;
};

std::string help_text() {
  std::string text =
      "Counts instructions a message and side, or a call, under callgrind (the package valgrind), "
      "and compares them with the budgets of a file. Messages are between two domains, or comms of "
      "the NCCL plugin, of one process on the software HCA; what the HCA itself executes is not "
      "counted, nor, on GPUs, the stand-in for CUDA and NCCL, without which those rows are left "
      "out. Operations:\n";
  for (const Operation& operation : budgeted_operations())
    text += "  " + std::string(operation.name) + "  " + operation.what + "\n";
  return text + "Exit: 0 within budget, 1 a budget is exceeded, 2 usage, 3 environment.";
}

std::string read_file(const std::string& path) {
  std::ifstream file(path);
  std::ostringstream text;
  if (!file || !(text << file.rdbuf()))
    throw usage_error("--budget: '" + path +
                      "' cannot be read; give the path of instr_budget.txt, which lies in perf/");
  return text.str();
}

const Operation& operation_of(const std::string& name) {
  const auto& all = budgeted_operations();
  const auto found = std::find_if(
      all.begin(), all.end(), [&](const Operation& operation) { return operation.name == name; });
  if (found != all.end()) return *found;
  std::string nearest;
  size_t least = SIZE_MAX;
  for (const Operation& operation : all)
    if (const size_t distance = edit_distance(name, operation.name); distance < least) {
      least = distance;
      nearest = operation.name;
    }
  throw usage_error("'" + name + "' is not an operation; the nearest is " + nearest);
}

// A file name of this process's own, removed at the end.
class OutputFile {
 public:
  OutputFile()
      : path_(std::filesystem::temp_directory_path() /
              ("noria_budget_" + std::to_string(::getpid()) + ".out")) {}
  ~OutputFile() {
    std::error_code ignored;
    std::filesystem::remove(path_, ignored);
  }
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;
  std::string path() const { return path_.string(); }

 private:
  std::filesystem::path path_;
};

std::filesystem::path this_program() { return std::filesystem::read_symlink("/proc/self/exe"); }

std::string gpu_library() {
  return (this_program().parent_path().parent_path() / "tests" / kGpu).string();
}

double count(const Operation& operation) {
  const OutputFile output;
  const ProgramEnd end =
      run_program({"valgrind", "--quiet", "--tool=callgrind", "--log-file=/dev/null",
                   "--callgrind-out-file=" + output.path(), "--collect-atstart=no",
                   std::string("--toggle-collect=*") + kMeasured + "*", this_program().string(),
                   "--run", operation.name},
                  {{"NORIA_SOFT", "1"},
                   {"NORIA_SOCKET_IFNAME", "lo"},
                   {"NORIA_CUDA", gpu_library()},
                   {"NORIA_NCCL", gpu_library()}},
                  kLimit);
  if (end.exit_code == 127)
    throw ToolError(Exit::environment, "valgrind was not found; install the package valgrind");
  if (end.exit_code != 0)
    throw ToolError(Exit::environment, std::string(operation.name) +
                                           " failed under valgrind with exit code " +
                                           std::to_string(end.exit_code) +
                                           "; try it alone: instr_budget --run " + operation.name);
  std::ifstream file(output.path());
  std::ostringstream text;
  text << file.rdbuf();
  const auto instructions = instructions_outside(text.str(), operation.is_on_gpu ? kGpu : kDevice,
                                                 operation.is_of_library ? kName : "");
  if (!instructions || *instructions == 0)
    throw ToolError(Exit::environment, std::string(operation.name) +
                                           ": callgrind counted nothing; was the tool stripped of "
                                           "its symbols?");
  return static_cast<double>(*instructions) / static_cast<double>(operation.count);
}

int body(int argc, char** argv) {
  Options options;
  CLI::App app(help_text(), kName);
  app.add_option("--budget", options.budget, "file of budgets (perf/instr_budget.txt)");
  app.add_option("--only", options.only, "count this operation alone");
  app.add_option("--margin", options.margin_percent,
                 "percent above its budget that a row may be, for other compilers (0)")
      ->check(real_number(0, 1000));
  app.add_option("--run", options.run, "run this operation and count nothing: what callgrind runs");
  app.add_flag("--json", options.json, "write JSON to standard output, and no table");
  if (parse_command_line(app, argc, argv)) return static_cast<int>(Exit::ok);
  if (!options.run.empty()) {
    const Operation& operation = operation_of(options.run);
    operation.run(operation.count);
    return static_cast<int>(Exit::ok);
  }
  params_of_environment();
  if (!options.only.empty()) operation_of(options.only);

  std::vector<Counted> rows;
  for (const Budget& budget : parse_budgets(read_file(options.budget), options.budget)) {
    const Operation& operation = operation_of(budget.name);
    if (!options.only.empty() && options.only != budget.name) continue;
    if (operation.is_on_gpu && !std::filesystem::exists(gpu_library())) {
      std::fprintf(stderr, "%s: %s is left out: there is no %s, which is built with NORIA_TESTS\n",
                   kName, operation.name, gpu_library().c_str());
      continue;
    }
    rows.push_back({budget, count(operation)});
  }
  if (rows.empty()) throw usage_error(options.budget + " has no budget for " + options.only);
  std::fputs(options.json ? (budget_json(rows, options.margin_percent).dump(2) + "\n").c_str()
                          : budget_table(rows, options.margin_percent).c_str(),
             stdout);
  const bool is_exceeded = std::any_of(rows.begin(), rows.end(), [&](const Counted& row) {
    return row.is_exceeded(options.margin_percent);
  });
  return static_cast<int>(is_exceeded ? Exit::wrong_result : Exit::ok);
}

}  // namespace
}  // namespace noria::perf

int main(int argc, char** argv) {
  return noria::perf::run_tool(noria::perf::kName, noria::perf::body, argc, argv);
}
