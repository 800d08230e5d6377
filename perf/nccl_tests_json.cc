#include "perf/nccl_tests_json.hpp"

#include <time.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "perf/exit_codes.hpp"

namespace noria::perf {
namespace {

using Json = nlohmann::ordered_json;

Json half(const Measurement& m) {
  Json json{{"time", m.time_us}, {"alg_bw", m.algbw}, {"bus_bw", m.busbw}};
  json["nwrong"] = m.wrong ? Json(*m.wrong) : Json(nullptr);
  if (m.max_us > 0) {
    json["p50_us"] = m.p50_us;
    json["p99_us"] = m.p99_us;
    json["max_us"] = m.max_us;
  }
  json["cpu_s_per_gb"] = m.cpu_s_per_gb;
  return json;
}

Json config_of(const BenchOptions& options) {
  Json json{{"nthreads", 1},
            {"ngpus", 1},
            {"minimum_bytes", options.sweep.min_bytes},
            {"maximum_bytes", options.sweep.max_bytes}};
  if (options.sweep.step_factor != 0)
    json["step_factor"] = options.sweep.step_factor;
  else
    json["step_bytes"] = options.sweep.step_bytes;
  json["warmup_iters"] = options.warmups;
  json["iterations"] = options.iterations;
  json["aggregated_iterations"] = 1;
  json["validation"] = options.checks;
  json["graph"] = 0;
  json["blocking_collectives"] = options.blocking;
  return json;
}

// The variables that shape a run; others are nobody's business.
Json environment_of() {
  Json json = Json::array();
  for (char** entry = environ; *entry != nullptr; ++entry)
    if (std::string_view(*entry).starts_with("NORIA_")) json.push_back(*entry);
  return json;
}

}  // namespace

std::string nccl_tests_json(const JsonInput& input) {
  Json json{{"version", 3}, {"start_time", input.start_time}};
  json["args"] = input.options.arguments;
  json["env"] = environment_of();
  json["noria_version"] = input.library_version;
  json["config"] = config_of(input.options);
  for (const DeviceLine& line : input.devices)
    json["config"]["devices"].push_back({{"rank", line.rank},
                                         {"group", 0},
                                         {"pid", line.pid},
                                         {"hostname", line.host},
                                         {"device", 0},
                                         {"device_info", line.device}});
  json["backend"] = input.options.backend;
  json["fetch"] = fetches_by_reads(input.info) ? "read" : "message";
  json["notice"] = input.info.notice;
  // Of rank 0, since the job began; what the device counted.
  json["sent_bytes"] = input.info.sent_bytes;
  json["received_bytes"] = input.info.received_bytes;
  json["results"] = Json::array();
  for (const Row& row : input.rows)
    json["results"].push_back({{"size", row.bytes},
                               {"count", row.count},
                               {"type", row.type},
                               {"redop", row.op},
                               {"root", row.root},
                               {"out_of_place", half(row.out_of_place)},
                               {"in_place", half(row.in_place)},
                               {"actual_iterations", input.options.iterations},
                               {"experiment_name", input.tool}});
  const uint64_t wrong = wrong_elements(input.rows);
  json["out_of_bounds"] = {{"count", wrong}, {"okay", wrong == 0}};
  json["average_bus_bandwidth"] = {{"bandwidth", average_bus_bandwidth(input.rows)},
                                   {"okay", "unchecked"}};
  json["errors"] = Json::array();
  json["end_time"] = time_text();
  return json.dump(2) + "\n";
}

std::string time_text() {
  const time_t now = ::time(nullptr);
  tm utc{};
  ::gmtime_r(&now, &utc);
  std::array<char, 32> text{};
  ::strftime(text.data(), text.size(), "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text.data();
}

void write_file(const std::string& path, const std::string& text) {
  std::ofstream file(path);
  file << text;
  file.close();
  if (!file) throw ToolError(Exit::environment, path + ": cannot be written: " + strerror(errno));
}

void require_writable(const std::string& path) {
  if (!path.empty() && !std::ofstream(path, std::ios::app))
    throw ToolError(Exit::environment, path + ": cannot be written: " + strerror(errno));
}

void append_results(const std::string& path, const std::string& section) {
  if (path.empty()) return;
  std::ofstream file(path, std::ios::app);
  file << "\n## " << section;
  file.close();
  if (!file) throw ToolError(Exit::environment, path + ": cannot be written");
}

void require_printed() {
  errno = 0;
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return;
  // Of a write that failed earlier only the fact is left.
  throw ToolError(Exit::environment,
                  std::string("standard output cannot be written: ") +
                      (errno != 0 ? strerror(errno) : "an earlier write failed"));
}

}  // namespace noria::perf
