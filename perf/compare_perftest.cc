// compare_perftest: perftest on the software HCA against what this machine can do without a device
// (soft_baseline), the transport on it against perftest, and over TCP against itself, and the
// smallest all-reduce, in turn: what each of them costs.

#include <algorithm>
#include <cmath>

#include "base/units.hpp"
#include "perf/all_reduce_run.hpp"
#include "perf/child_program.hpp"
#include "perf/command_line.hpp"
#include "perf/comparison.hpp"
#include "perf/format_text.hpp"
#include "perf/machine.hpp"
#include "perf/nccl_tests_json.hpp"
#include "perf/perftest_run.hpp"
#include "perf/sizes.hpp"
#include "perf/stats.hpp"

namespace noria::perf {
namespace {

constexpr const char* kName = "compare_perftest";
constexpr const char* kTransport = "transport_bw";
constexpr const char* kTransportOverTcp = "transport_bw over TCP";
constexpr const char* kAllReduce = "all_reduce_perf";
constexpr uint64_t kLeastIterations = 1000;

struct Options : Comparison {
  std::vector<std::string> sizes{"64K", "1M"};
  std::string only;
};

// One row: two that are measured in turn. Each is a program of perftest with its flags, the
// transport's own, an all-reduce of two ranks, or a mode of soft_baseline.
struct Row {
  std::string program;
  std::string against;
  uint64_t bytes = 0;
  bool is_latency = false;
  std::string goal;
};

Nanoseconds limit_of(const Options& options) {
  return static_cast<Nanoseconds>(options.seconds * 20e9) + 60_s;
}

using Variables = std::vector<std::pair<std::string, std::string>>;

double number_of(const std::vector<std::string>& words, const Variables& variables,
                 const Options& options) {
  return std::stod(output_of_program(words, variables, limit_of(options)));
}

// Calls a second, or microseconds one way.
double baseline(const std::string& mode, const Row& row, const Options& options) {
  return number_of({own_folder() + "soft_baseline", mode, "--bytes", std::to_string(row.bytes),
                    "--seconds", detail::number_text(options.seconds)},
                   {}, options);
}

// Messages a second.
double transport_rate(const Row& row, uint64_t messages, const char* copy_path,
                      const Options& options) {
  return number_of({own_folder() + "noria_soft", own_folder() + kTransport, "--bytes",
                    std::to_string(row.bytes), "--messages", std::to_string(messages)},
                   {{"NORIA_SOFT_COPY", copy_path}}, options);
}

// Messages a second, or microseconds one way.
double perftest(const std::string& program, const Row& row, uint64_t iterations,
                const Options& options) {
  const PerftestRow measured =
      run_perftest(program, row.bytes, iterations, false, limit_of(options));
  return row.is_latency ? measured.average_us : measured.average;
}

// Microseconds of a call.
double all_reduce(const Row& row, uint64_t iterations, const Options& options) {
  const auto us = all_reduce_us(output_of_program(
      all_reduce_command(2, std::to_string(row.bytes), static_cast<int64_t>(iterations)),
      {{"NORIA_SOFT", "1"}}, limit_of(options)));
  if (!us) throw ToolError(Exit::environment, std::string(kAllReduce) + " printed no time");
  return *us;
}

bool is_mode(const std::string& who) {
  return !who.starts_with(kTransport) && who != kAllReduce && !who.starts_with("ib_");
}

// What `who` of the row does: messages or calls a second, or microseconds one way.
double value_of(const std::string& who, const Row& row, uint64_t iterations,
                const Options& options) {
  if (is_mode(who)) return baseline(who, row, options);
  if (who == kAllReduce) return all_reduce(row, iterations, options);
  if (who == kTransportOverTcp) return transport_rate(row, iterations, "tcp", options);
  return who == kTransport ? transport_rate(row, iterations, "auto", options)
                           : perftest(who, row, iterations, options);
}

struct Measured {
  double value = 0, against = 0, ratio = 0;  // medians; the ratio's own
};

Measured measure(const Row& row, const Options& options) {
  const double pilot = is_mode(row.against) || row.is_latency
                           ? value_of(row.against, row, kLeastIterations, options)
                           : value_of(row.program, row, kLeastIterations, options);
  const double a_second = row.is_latency ? 1e6 / (2 * pilot) : pilot;
  // A multiple of every post list in all_rows().
  const auto iterations =
      static_cast<uint64_t>(std::max(a_second * options.seconds, double{kLeastIterations})) / 16 *
      16;
  std::vector<double> values, others, ratios;
  for (int round = 0; round < options.rounds; ++round) {
    options.show_round(row.program, round);
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
  rows.push_back({kAllReduce, "ib_send_lat", 8, true, "at most 2.5"});
  // With as many under way as the transport has.
  for (const uint64_t bytes : sizes)
    if (bytes >= 256_KiB) rows.push_back({kTransport, "ib_write_bw -t 64", bytes, false, "0.95"});
  for (const uint64_t bytes : sizes)
    rows.push_back({kTransportOverTcp, kTransport, bytes, false, "none"});
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

std::string table_row(const Row& row, const Measured& m) {
  const auto shown = [&row](double value) {
    if (row.is_latency) return format_text("%.2f us", value);
    if (row.bytes < 4096) return format_text("%.2f M/s", value * 1e-6);
    return format_text("%.2f GB/s", value * static_cast<double>(row.bytes) * 1e-9);
  };
  return "| " + row.program + " | " + std::to_string(row.bytes) + " | " + shown(m.value) + " | " +
         row.against + " | " + shown(m.against) + " | " + format_text("%.2f", m.ratio) + " | " +
         row.goal + " |\n";
}

int body(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Times programs of perftest on the software HCA and the bare kernel calls beneath; the "
      "transport, an\nall-reduce of 8 bytes and perftest; in turn; prints medians and ratios.\n"
      "Exit: 0, 2 usage, 3 a program is missing or failed.",
      kName);
  app.add_option("--sizes", options.sizes,
                 "of writes, and of the transport's messages where they are 256K or more (64K,1M)")
      ->delimiter(',')
      ->transform(byte_size(4096, uint64_t{1} << 30));
  app.add_option("--only", options.only, "rows of programs whose name contains this");
  options.add_options(app);
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
  options.print(text);
  return 0;
}

}  // namespace
}  // namespace noria::perf

int main(int argc, char** argv) {
  return noria::perf::run_tool(noria::perf::kName, &noria::perf::body, argc, argv);
}
