#include "perf/perftest_run.hpp"

#include <unistd.h>

#include <array>
#include <sstream>

#include "perf/child_program.hpp"
#include "perf/exit_codes.hpp"
#include "perf/machine.hpp"

namespace noria::perf {
namespace {

std::vector<std::string> pair_command(const std::string& program, uint64_t bytes,
                                      uint64_t iterations) {
  static int port = 20000 + static_cast<int>(::getpid() % 10000);
  port = port < 30000 ? port + 1 : 20001;  // below the ports that the kernel gives to clients
  const std::string one = own_folder() + "noria_soft " + program + " -F -s " +
                          std::to_string(bytes) + " -n " + std::to_string(iterations) + " -p " +
                          std::to_string(port);
  return {"sh", "-c",
          one + " >/dev/null & i=0; until " + one +
              " 127.0.0.1 2>/dev/null; do i=$((i+1)); [ $i -lt 100 ] || exit 1; sleep 0.05; done; "
              "wait"};
}

}  // namespace

PerftestRow run_perftest(const std::string& program, uint64_t bytes, uint64_t iterations,
                         Nanoseconds limit) {
  const std::string output = output_of_program(pair_command(program, bytes, iterations), {}, limit);
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
