#include "perf/perftest_run.hpp"

#include <array>
#include <sstream>

#include "perf/exit_codes.hpp"
#include "perf/machine.hpp"
#include "perf/two_sides.hpp"

namespace noria::perf {
namespace {

// One side; the other's is the same, with the address of the first.
std::vector<std::string> side_command(const std::string& program, uint64_t bytes,
                                      uint64_t iterations) {
  std::vector<std::string> words{own_folder() + "noria_soft"};
  std::istringstream flags(program);
  for (std::string word; flags >> word;) words.push_back(word);
  for (const std::string& word :
       {std::string("-F"), std::string("-s"), std::to_string(bytes), std::string("-n"),
        std::to_string(iterations), std::string("-p"), std::to_string(next_server_port())})
    words.push_back(word);
  return words;
}

}  // namespace

PerftestRow run_perftest(const std::string& program, uint64_t bytes, uint64_t iterations,
                         bool are_sides_bound, Nanoseconds limit) {
  TwoSides sides{.server = side_command(program, bytes, iterations), .are_bound = are_sides_bound};
  sides.client = sides.server;
  sides.client.emplace_back("127.0.0.1");
  const std::string output = output_of_client(sides, limit);
  std::istringstream lines(output);
  for (std::string line; std::getline(lines, line);) {
    if (line.find("#bytes") == std::string::npos) continue;
    std::getline(lines, line);
    std::istringstream words(line);
    std::array<double, 6> numbers{};
    for (double& number : numbers) words >> number;
    // bytes, iterations, then: peak, average, Mpps; or t_min, t_max, t_typical, t_avg.
    if (numbers[4] > 0)
      return {.average = numbers[4] * 1e6, .typical_us = numbers[4], .average_us = numbers[5]};
  }
  throw ToolError(Exit::environment, program + " printed no row: " + output);
}

}  // namespace noria::perf
