#include "perf/all_reduce_run.hpp"

#include <nlohmann/json.hpp>

#include "perf/machine.hpp"

namespace noria::perf {
namespace {
constexpr const char* kWarmups = "5";
}

std::vector<std::string> all_reduce_command(int ranks, const std::string& bytes,
                                            int64_t iterations) {
  return {own_folder() + "all_reduce_perf",
          "-g",
          std::to_string(ranks),
          "-b",
          bytes,
          "-e",
          bytes,
          "-n",
          std::to_string(iterations),
          "-w",
          kWarmups,
          "-c",
          "0",
          "--json"};
}

std::optional<double> all_reduce_us(const std::string& output) {
  const auto json = nlohmann::json::parse(output, nullptr, false);
  if (!json.is_object()) return std::nullopt;
  return json.at("results").at(0).at("out_of_place").at("time").get<double>();
}

}  // namespace noria::perf
