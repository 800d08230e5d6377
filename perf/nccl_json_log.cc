#include "perf/nccl_json_log.hpp"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "perf/exit_codes.hpp"

namespace noria::perf {
namespace {

using Json = nlohmann::json;

size_t line_at(std::string_view text, size_t byte) {
  const std::string_view before = text.substr(0, byte);
  return static_cast<size_t>(std::count(before.begin(), before.end(), '\n')) + 1;
}

// Where the objects of results[] stand: each has one key "size", and nothing else has one.
std::vector<size_t> lines_of_results(std::string_view text) {
  constexpr std::string_view kKey = "\"size\"";
  std::vector<size_t> lines;
  size_t line = 1, counted = 0;
  for (size_t at = 0; (at = text.find(kKey, at)) != std::string_view::npos; at += kKey.size()) {
    const size_t after = text.find_first_not_of(" \t\r\n", at + kKey.size());
    if (after == std::string_view::npos || text[after] != ':') continue;
    const std::string_view passed = text.substr(counted, at - counted);
    line += static_cast<size_t>(std::count(passed.begin(), passed.end(), '\n'));
    counted = at;
    lines.push_back(line);
  }
  return lines;
}

// A value of an object, or null where it has none or is no object.
const Json& value_of(const Json& object, const char* key) {
  static const Json kNone;
  if (!object.is_object()) return kNone;
  const auto found = object.find(key);
  return found != object.end() ? *found : kNone;
}
std::string word_of(const Json& object, const char* key) {
  const Json& value = value_of(object, key);
  return value.is_string() ? value.get<std::string>() : "";
}
std::string number_of(const Json& object, const char* key) {
  const Json& value = value_of(object, key);
  return value.is_number() ? value.dump() : "";
}
uint64_t count_of(const Json& object, const char* key) {
  const Json& value = value_of(object, key);
  return value.is_number_unsigned() ? value.get<uint64_t>() : 0;
}

LoggedHalf half_of(const Json& half) {
  if (!half.is_object()) return {};
  LoggedHalf read{number_of(half, "time"), number_of(half, "alg_bw"), number_of(half, "bus_bw"),
                  number_of(half, "nwrong")};
  if (read.time_us.empty()) read.time_us = number_of(half, "cpu_time");
  if (read.is_there() && read.wrong.empty()) read.wrong = "N/A";
  return read;
}

// "all_reduce" of "build/all_reduce_perf_mpi".
std::string collective_of(const std::string& program) {
  const size_t end = program.find("_perf");
  if (end == std::string::npos) return "";
  const size_t slash = program.rfind('/', end);
  const size_t begin = slash == std::string::npos ? 0 : slash + 1;
  return program.substr(begin, end - begin);
}

// NCCL's, as a number or as its text.
std::string version_of(const Json& json) {
  const Json& version = value_of(json, "nccl_version");
  if (version.is_string()) return version.get<std::string>();
  if (!version.is_number_unsigned()) return "";
  const auto code = version.get<uint64_t>();
  return std::to_string(code / 10000) + "." + std::to_string(code / 100 % 100) + "." +
         std::to_string(code % 100);
}

void take_devices(const Json& json, LoggedTable* table) {
  std::set<std::string> hosts;
  const Json& devices = value_of(value_of(json, "config"), "devices");
  if (!devices.is_array()) return;
  for (const Json& device : devices) {
    table->ranks = std::max(table->ranks, count_of(device, "rank") + 1);
    if (const std::string host = word_of(device, "hostname"); !host.empty()) hosts.insert(host);
    table->gpu = word_of(device, "device_info");
  }
  table->nodes = hosts.size();
}

void take_environment(const Json& json, LoggedTable* table) {
  for (const Json& entry : value_of(json, "env")) {
    if (!entry.is_string()) continue;
    const auto text = entry.get<std::string>();
    if (text.starts_with("NCCL_ALGO=")) table->algorithm = text.substr(text.find('=') + 1);
    if (text.starts_with("NCCL_PROTO=")) table->protocol = text.substr(text.find('=') + 1);
  }
}

LoggedRow row_of(const Json& result, size_t line) {
  LoggedRow row{.bytes = count_of(result, "size"),
                .count = count_of(result, "count"),
                .type = word_of(result, "type"),
                .redop = word_of(result, "redop"),
                .root = number_of(result, "root")};
  row.out_of_place = half_of(value_of(result, "out_of_place"));
  row.in_place = half_of(value_of(result, "in_place"));
  row.line = line;
  return row;
}

}  // namespace

bool is_json(std::string_view text) {
  const size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{';
}

NcclTestsLog parse_nccl_tests_json(std::string_view text, const std::string& file) {
  Json json;
  try {
    json = Json::parse(text);
  } catch (const Json::parse_error& error) {
    throw usage_error(file + ":" +
                      std::to_string(line_at(text, std::min(error.byte, text.size()))) + ": " +
                      (error.byte >= text.size() ? "the JSON ends here and is not whole: was "
                                                   "the run cut off?"
                                                 : "is no JSON from here on"));
  } catch (const Json::out_of_range& error) {
    // What it says ends with the number between quotes; it does not say where that stands.
    const std::string_view says = error.what();
    const size_t quote = says.find('\'');
    const std::string_view number =
        quote != std::string_view::npos ? says.substr(quote + 1, says.rfind('\'') - quote - 1) : "";
    throw usage_error(file + ":" + std::to_string(line_at(text, text.find(number))) + ": '" +
                      std::string(number) + "' is too large a number");
  }
  const Json& results = value_of(json, "results");
  if (!results.is_array() || results.empty())
    throw usage_error(file + ":1: is JSON without results[] of nccl-tests");
  LoggedTable table{.line = 1};
  const Json& arguments = value_of(json, "args");
  if (arguments.is_array() && !arguments.empty() && arguments[0].is_string())
    table.collective = collective_of(arguments[0].get<std::string>());
  table.nccl_version = version_of(json);
  table.has_end = value_of(json, "average_bus_bandwidth").is_object();
  take_devices(json, &table);
  take_environment(json, &table);
  const std::vector<size_t> lines = lines_of_results(text);
  for (size_t i = 0; i < results.size(); ++i) {
    const size_t line = i < lines.size() ? lines[i] : 1;
    if (!value_of(results[i], "size").is_number_unsigned() || word_of(results[i], "type").empty())
      throw usage_error(file + ":" + std::to_string(line) + ": results[" + std::to_string(i) +
                        "] has no size or no type");
    table.rows.push_back(row_of(results[i], line));
  }
  NcclTestsLog log;
  log.tables.push_back(std::move(table));
  return log;
}

NcclTestsLog parse_nccl_log(std::string_view text, const std::string& file) {
  return is_json(text) ? parse_nccl_tests_json(text, file) : parse_nccl_tests(text);
}

}  // namespace noria::perf
