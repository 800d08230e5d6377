// noria_trace: the steps that ranks wrote under NORIA_TRACE, as a table, a Chrome trace and a page.

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>

#include "perf/command_line.hpp"
#include "perf/nccl_tests_json.hpp"
#include "perf/step_lines.hpp"

namespace noria::perf {
namespace {

namespace fs = std::filesystem;

constexpr const char* kName = "noria_trace";
constexpr const char* kHelp =
    "Shows where the time of training steps went, from what the ranks of a job write when "
    "NORIA_TRACE is set:\n"
    "  NORIA_TRACE=/tmp/job torchrun ... train.py\n"
    "  noria_trace /tmp/job.rank*.jsonl --html job.html --chrome job.json\n"
    "Without --html and --chrome it prints a line a step. Ranks of several hosts are put on the "
    "clock of rank 0; how far off a rank may be is said in the page and in the trace.\n"
    "Exit: 0 all right, 2 usage, a file that is not what it should be, or no step in any.";

StepLines read_rank(const std::string& path) {
  std::error_code unknown;  // is told when it is opened
  if (fs::is_directory(path, unknown))
    throw usage_error(path + ": is a directory; give the files in it, as " + path + "/*.jsonl");
  std::ifstream file(path, std::ios::binary);
  if (!file) throw usage_error(path + ": cannot be read: " + std::strerror(errno));
  return parse_step_lines(std::string(std::istreambuf_iterator<char>(file), {}), path);
}

// By the file, not by its name: a link to an input is the input.
void require_other_file(const std::string& output, const std::vector<std::string>& inputs) {
  std::error_code absent;  // is no input
  for (const std::string& input : inputs)
    if (!output.empty() && fs::equivalent(output, input, absent))
      throw usage_error(output + ": is one of the files that are read; write to another");
}

int body(int argc, char** argv) {
  std::vector<std::string> files;
  std::string chrome, html;
  CLI::App app(kHelp, kName);
  app.add_option("FILE", files, "what the ranks wrote, one file of each")->required();
  app.add_option("--chrome", chrome, "write a Chrome trace for Perfetto")->check(file_name());
  app.add_option("--html", html, "write a page for a browser")->check(file_name());
  if (parse_command_line(app, argc, argv)) return 0;

  require_other_file(chrome, files);
  require_other_file(html, files);
  if (!html.empty() && html == chrome)
    throw usage_error(html + ": --html and --chrome name the same file");

  std::vector<StepLines> ranks;
  for (const std::string& file : files) ranks.push_back(read_rank(file));
  const Timeline timeline = join_ranks(std::move(ranks));
  require_steps(timeline);
  if (!chrome.empty()) write_file(chrome, chrome_trace(timeline));
  if (!html.empty()) write_file(html, timeline_page(timeline));
  if (chrome.empty() && html.empty()) std::fputs(step_table(timeline).c_str(), stdout);
  return 0;
}

}  // namespace
}  // namespace noria::perf

int main(int argc, char** argv) {
  return noria::perf::run_tool(noria::perf::kName, &noria::perf::body, argc, argv);
}
