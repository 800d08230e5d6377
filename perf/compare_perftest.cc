// compare_perftest: perftest on the software HCA against what this machine can do without a device
// (soft_baseline), and the transport on it against perftest, in turn: what each of the two costs.

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "base/units.hpp"
#include "perf/child_program.hpp"
#include "perf/command_line.hpp"
#include "perf/machine.hpp"
#include "perf/nccl_tests_json.hpp"
#include "perf/sizes.hpp"
#include "perf/stats.hpp"

namespace noria::perf {
namespace {

constexpr const char* kName = "compare_perftest";
constexpr const char* kTransport = "transport_bw";
constexpr uint64_t kLeastIterations = 1000;

struct Options {
  std::vector<std::string> sizes{"64K", "1M"};
  std::string only;
  int rounds = 5;
  double seconds = 1;
  std::string results;
};

// One row: two that are measured in turn. Each is a program of perftest with its flags, the
// transport's own, or a mode of soft_baseline.
struct Row {
  std::string program;
  std::string against;
  uint64_t bytes = 0;
  bool is_latency = false;
  std::string goal;
};

std::string output_of(const std::vector<std::string>& words, const Options& options) {
  const auto limit = static_cast<Nanoseconds>(options.seconds * 20e9) + 60_s;
  const ProgramEnd end = run_program(words, {}, limit);
  if (end.exit_code != 0)
    throw ToolError(Exit::environment, "exit code " + std::to_string(end.exit_code) + " of " +
                                           command_text(words, {}) + ": " + end.output);
  return end.output;
}

double number_of(const std::vector<std::string>& words, const Options& options) {
  return std::stod(output_of(words, options));
}

// Calls a second, or microseconds one way.
double baseline(const std::string& mode, const Row& row, const Options& options) {
  return number_of({own_folder() + "soft_baseline", mode, "--bytes", std::to_string(row.bytes),
                    "--seconds", detail::number_text(options.seconds)},
                   options);
}

// Messages a second.
double transport_rate(const Row& row, uint64_t messages, const Options& options) {
  return number_of({own_folder() + "noria_soft", own_folder() + kTransport, "--bytes",
                    std::to_string(row.bytes), "--messages", std::to_string(messages)},
                   options);
}

// Both sides by one shell; the client tries until the server listens.
std::vector<std::string> pair_command(const std::string& program, const Row& row,
                                      uint64_t iterations) {
  static int port = 20000 + static_cast<int>(::getpid() % 10000);
  port = port < 30000 ? port + 1 : 20001;  // below the ports that the kernel gives to clients
  const std::string one = own_folder() + "noria_soft " + program + " -F -s " +
                          std::to_string(row.bytes) + " -n " + std::to_string(iterations) + " -p " +
                          std::to_string(port);
  return {"sh", "-c",
          one + " >/dev/null & i=0; until " + one +
              " 127.0.0.1 2>/dev/null; do i=$((i+1)); [ $i -lt 100 ] || exit 1; sleep 0.05; done; "
              "wait"};
}

// Messages a second, or microseconds one way: by perftest's own columns.
double perftest(const std::string& program, const Row& row, uint64_t iterations,
                const Options& options) {
  const std::string output = output_of(pair_command(program, row, iterations), options);
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("#bytes") == std::string::npos) continue;
    std::getline(lines, line);
    std::istringstream words(line);
    std::array<double, 6> numbers{};
    for (double& number : numbers) words >> number;
    // bytes, iterations, then: peak, average, Mpps; or t_min, t_max, t_typical, t_avg.
    const double value = row.is_latency ? numbers[5] : numbers[4] * 1e6;
    if (value > 0) return value;
  }
  throw ToolError(Exit::environment, program + " printed no row: " + output);
}

bool is_mode(const std::string& who) { return who != kTransport && !who.starts_with("ib_"); }

// What `who` of the row does: messages or calls a second, or microseconds one way.
double value_of(const std::string& who, const Row& row, uint64_t iterations,
                const Options& options) {
  if (is_mode(who)) return baseline(who, row, options);
  return who == kTransport ? transport_rate(row, iterations, options)
                           : perftest(who, row, iterations, options);
}

struct Measured {
  double value = 0, against = 0, ratio = 0;  // medians; the ratio's own
};

Measured measure(const Row& row, const Options& options) {
  const double pilot = is_mode(row.against) ? baseline(row.against, row, options)
                                            : transport_rate(row, kLeastIterations, options);
  const double a_second = row.is_latency ? 1e6 / (2 * pilot) : pilot;
  // A multiple of every post list in all_rows().
  const auto iterations =
      static_cast<uint64_t>(std::max(a_second * options.seconds, double{kLeastIterations})) / 16 *
      16;
  std::vector<double> values, others, ratios;
  for (int round = 0; round < options.rounds; ++round) {
    if (::isatty(STDERR_FILENO) != 0)
      std::fprintf(stderr, "\r\033[K%s: round %d of %d\r", row.program.c_str(), round + 1,
                   options.rounds);
    others.push_back(value_of(row.against, row, iterations, options));
    values.push_back(value_of(row.program, row, iterations, options));
    ratios.push_back(values.back() / others.back());
  }
  return {median(values), median(others), median(ratios)};
}

std::vector<Row> all_rows(const Options& options) {
  std::vector<Row> rows;
  std::vector<uint64_t> sizes;
  for (const std::string& size : options.sizes) sizes.push_back(parse_size(size).value_or(0));
  for (const uint64_t bytes : sizes) rows.push_back({"ib_write_bw", "write", bytes, false, "0.85"});
  rows.push_back({"ib_write_bw", "write", 64, false, "0.8"});
  rows.push_back({"ib_write_bw -l 16", "write", 64, false, "1 M/s"});
  rows.push_back({"ib_write_lat", "attach", 8, true, "at most 1.3"});
  rows.push_back({"ib_send_lat", "flag", 8, true, "at most 3"});
  // With as many under way as the transport has.
  for (const uint64_t bytes : sizes)
    if (bytes >= 256_KiB) rows.push_back({kTransport, "ib_write_bw -t 64", bytes, false, "0.95"});
  return rows;
}

std::vector<Row> chosen_rows(const Options& options) {
  std::vector<Row> rows = all_rows(options);
  std::erase_if(rows, [&options](const Row& row) {
    return row.program.find(options.only) == std::string::npos;
  });
  if (rows.empty()) throw usage_error("--only: no program's name contains '" + options.only + "'");
  return rows;
}

std::string cell(const char* format, double value) {
  std::array<char, 48> text{};
  std::snprintf(text.data(), text.size(), format, value);
  return text.data();
}

std::string table_row(const Row& row, const Measured& m) {
  const auto shown = [&row](double value) {
    if (row.is_latency) return cell("%.2f us", value);
    if (row.bytes < 4096) return cell("%.2f M/s", value * 1e-6);
    return cell("%.2f GB/s", value * static_cast<double>(row.bytes) * 1e-9);
  };
  return "| " + row.program + " | " + std::to_string(row.bytes) + " | " + shown(m.value) + " | " +
         row.against + " | " + shown(m.against) + " | " + cell("%.2f", m.ratio) + " | " + row.goal +
         " |\n";
}

int body(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Times programs of perftest on the software HCA and the bare kernel calls beneath, and the "
      "transport and\nperftest, in turn; prints medians and ratios.\n"
      "Exit: 0, 2 usage, 3 a program is missing or failed.",
      kName);
  app.add_option("--sizes", options.sizes,
                 "of writes, and of the transport's messages where they are 256K or more (64K,1M)")
      ->delimiter(',')
      ->transform(byte_size(4096, uint64_t{1} << 30));
  app.add_option("--only", options.only, "rows of programs whose name contains this");
  app.add_option("--rounds", options.rounds, "rounds (5)")->check(whole_number(1, 1000));
  app.add_option("--seconds", options.seconds, "length of each run (1)")
      ->check(real_number(0.01, 600));
  app.add_option("--results", options.results,
                 "append the table to this file, as RESULTS.md has it");
  if (parse_command_line(app, argc, argv)) return 0;
  params_of_environment();
  require_writable(options.results);

  std::string text =
      "What the software HCA and the transport cost: medians of " + std::to_string(options.rounds) +
      " rounds in turn, each about " + detail::number_text(options.seconds) +
      " s;\none hot buffer on each side, neither bound. " + time_text() + ", " + machine_text() +
      ".\n\n| program | bytes | on the software HCA | against | measured | ratio | goal |\n"
      "|---|---:|---:|---|---:|---:|---:|\n";
  for (const Row& row : chosen_rows(options)) text += table_row(row, measure(row, options));
  text += "\n    build/bin/compare_perftest --results perf/RESULTS.md\n";
  std::fputs(text.c_str(), stdout);
  append_results(options.results, text);
  return 0;
}

}  // namespace
}  // namespace noria::perf

int main(int argc, char** argv) {
  return noria::perf::run_tool(noria::perf::kName, &noria::perf::body, argc, argv);
}
