// compare_net: NCCL's net plugin, and the transport beneath it, against perftest on the same
// device, in turn: what is left of a device's bandwidth and latency above noria.

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/units.hpp"
#include "perf/child_program.hpp"
#include "perf/command_line.hpp"
#include "perf/comparison.hpp"
#include "perf/format_text.hpp"
#include "perf/machine.hpp"
#include "perf/nccl_tests_json.hpp"
#include "perf/perftest_run.hpp"
#include "perf/sizes.hpp"
#include "perf/stats.hpp"
#include "perf/two_sides.hpp"

namespace noria::perf {
namespace {

constexpr const char* kName = "compare_net";
constexpr uint64_t kLeastIterations = 1000;

struct Options : Comparison {
  std::vector<std::string> sizes{"256K", "1M", "4M"};
  std::string only;
};

struct Row {
  std::string ours;     // net_perf or transport_bw, with flags
  std::string against;  // of perftest, with the same in flight and the same working set
  uint64_t bytes = 0;
  bool is_latency = false;
  std::string goal;
  // Each side on a core of its own: perftest's server sleeps.
  bool are_sides_bound = false;
  // Against the sum of what ours carries over each of them alone, in place of perftest.
  std::vector<std::string> devices{};  // as NORIA_SOFT_DEVICES has one
};

std::vector<std::string> words_of(const std::string& text) {
  std::vector<std::string> words;
  for (size_t at = 0, end = 0; at < text.size(); at = end + 1) {
    end = std::min(text.find(' ', at), text.size());
    words.push_back(text.substr(at, end - at));
  }
  return words;
}

Nanoseconds limit_of(const Options& options) {
  return static_cast<Nanoseconds>(options.seconds * 20e9) + 60_s;
}

std::string output_of(std::vector<std::string> words, const std::string& devices,
                      const Options& options) {
  words[0] = own_folder() + words[0];
  std::vector<std::pair<std::string, std::string>> variables{{"NORIA_SOFT", "1"}};
  if (!devices.empty()) variables.emplace_back("NORIA_SOFT_DEVICES", devices);
  return output_of_program(words, variables, limit_of(options));
}

std::vector<std::string> local_pair(std::vector<std::string> words) {
  words.emplace_back("-g");
  words.emplace_back("2");
  return words;
}

// Of a net_perf whose server and client are two programs.
std::string output_of_bound(std::vector<std::string> words, const Options& options) {
  words[0] = own_folder() + words[0];
  words.emplace_back("-p");
  words.push_back(std::to_string(next_server_port()));
  words.insert(words.begin(), {"env", "NORIA_SOFT=1"});
  TwoSides sides{.server = words, .client = words, .are_bound = true};
  sides.client.emplace_back("127.0.0.1");
  return output_of_client(sides, limit_of(options));
}

std::string joined(const std::vector<std::string>& devices) {
  std::string all;
  for (const std::string& device : devices) all += (all.empty() ? "" : ";") + device;
  return all;
}

// Messages a second, or microseconds one way.
double run_ours(const std::string& program, const Row& row, const std::string& devices,
                uint64_t iterations, const Options& options) {
  std::vector<std::string> words = words_of(program);
  if (words[0] == "transport_bw") {
    for (const std::string& word : {std::string("--bytes"), std::to_string(row.bytes),
                                    std::string("--messages"), std::to_string(iterations)})
      words.push_back(word);
    return std::stod(output_of(words, devices, options));
  }
  for (const std::string& word :
       {std::string("--json"), std::string("-s"), std::to_string(row.bytes), std::string("-n"),
        std::to_string(iterations)})
    words.push_back(word);
  const auto json = nlohmann::json::parse(
      row.are_sides_bound ? output_of_bound(std::move(words), options)
                          : output_of(local_pair(std::move(words)), devices, options));
  return json["rows"][0][row.is_latency ? "t_typical_us" : "messages_per_s"];
}

double ours(const Row& row, uint64_t iterations, const Options& options) {
  return run_ours(row.ours, row, joined(row.devices), iterations, options);
}

double theirs(const Row& row, uint64_t iterations, const Options& options) {
  if (!row.devices.empty()) {
    double sum = 0;
    for (const std::string& device : row.devices)
      sum += run_ours(words_of(row.ours).front(), row, device,
                      std::max<uint64_t>(iterations / row.devices.size(), 1), options);
    return sum;
  }
  const PerftestRow measured =
      run_perftest(row.against, row.bytes, iterations, row.are_sides_bound, limit_of(options));
  return row.is_latency ? measured.typical_us : measured.average;
}

struct Measured {
  double ours = 0, theirs = 0, ratio = 0, least = 0, most = 0;
};

Measured measure(const Row& row, const Options& options) {
  const double pilot = ours(row, kLeastIterations, options);
  const double a_second = row.is_latency ? 1e6 / (2 * pilot) : pilot;
  const auto iterations =
      static_cast<uint64_t>(std::max(a_second * options.seconds, double{kLeastIterations}));
  std::vector<double> own, other, ratios;
  for (int round = 0; round < options.rounds; ++round) {
    options.show_round(row.ours + ", " + std::to_string(row.bytes) + " bytes", round);
    other.push_back(theirs(row, iterations, options));
    own.push_back(ours(row, iterations, options));
    ratios.push_back(own.back() / other.back());
  }
  return {median(own), median(other), median(ratios), percentile(ratios, 0), largest(ratios)};
}

std::vector<Row> chosen_rows(const Options& options) {
  std::vector<Row> rows;
  for (const std::string& size : options.sizes) {
    const uint64_t bytes = parse_size(size).value_or(0);
    rows.push_back({"net_perf", "ib_write_bw -t 8", bytes, false, "0.97"});
    // perftest has a buffer for each queue pair, and the software HCA's service thread copies for
    // those that the poster does not get to.
    rows.push_back({"net_perf --buffers 8", "ib_write_bw -q 8 -t 1", bytes, false, "0.97", true});
  }
  rows.push_back({"net_perf --test lat", "ib_write_lat", 8, true, "at most 1.15"});
  for (const std::string& size : options.sizes)
    rows.push_back(
        {"transport_bw", "ib_write_bw -t 64", parse_size(size).value_or(0), false, "0.95"});
  // Far below what the machine can copy, so that the rails are what bounds.
  rows.push_back({.ours = "transport_bw --rails 2",
                  .against = "each rail alone, 4 and 2.34 Gbit/s",
                  .bytes = 1_MiB,
                  .goal = "0.95",
                  .devices = {"name=a,shape=4", "name=b,shape=2.34"}});
  std::erase_if(rows, [&options](const Row& row) {
    return row.ours.find(options.only) == std::string::npos;
  });
  if (rows.empty()) throw usage_error("--only: no row's name contains '" + options.only + "'");
  return rows;
}

std::string table_row(const Row& row, const Measured& m) {
  const auto shown = [&row](double value) {
    return row.is_latency ? format_text("%.2f us", value)
                          : format_text("%.2f GB/s", value * static_cast<double>(row.bytes) * 1e-9);
  };
  return "| " + row.ours + " | " + std::to_string(row.bytes) + " | " + shown(m.ours) + " | " +
         row.against + " | " + shown(m.theirs) + " | " +
         format_text("%.2f (%.2f to %.2f)", m.ratio, m.least, m.most) + " | " + row.goal + " |\n";
}

int body(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Times the NCCL plugin (net_perf) and the transport beneath it against perftest on the "
      "software HCA, in turn,\nwith as many messages in flight and the same working set, and two "
      "shaped rails of unlike rate against each alone; prints medians and ratios.\n"
      "Exit: 0, 2 usage, 3 a program is missing or failed.",
      kName);
  app.add_option("--sizes", options.sizes, "of messages (256K,1M,4M)")
      ->delimiter(',')
      ->transform(byte_size(4096, uint64_t{1} << 30));
  app.add_option("--only", options.only, "rows whose first column contains this");
  options.add_options(app);
  if (parse_command_line(app, argc, argv)) return 0;
  params_of_environment();
  require_writable(options.results);

  std::string text =
      "What the plugin and the transport leave of the device: medians of " +
      std::to_string(options.rounds) + " rounds in turn, each about " +
      detail::number_text(options.seconds) +
      " s;\nnot bound, but for a core a side where there are eight buffers. " + time_text() + ", " +
      machine_text() +
      ".\n\n| program | bytes | on the software HCA | against | measured | ratio | goal |\n"
      "|---|---:|---:|---|---:|---:|---:|\n";
  for (const Row& row : chosen_rows(options)) text += table_row(row, measure(row, options));
  text += "\n    build/bin/compare_net --results perf/RESULTS.md\n";
  options.print(text);
  return 0;
}

}  // namespace
}  // namespace noria::perf

int main(int argc, char** argv) {
  return noria::perf::run_tool(noria::perf::kName, &noria::perf::body, argc, argv);
}
