#include "perf/perftest_run.hpp"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <sstream>
#include <thread>
#include <utility>

#include "base/units.hpp"
#include "perf/child_program.hpp"
#include "perf/exit_codes.hpp"
#include "perf/machine.hpp"

namespace noria::perf {
namespace {

constexpr int kTries = 100;
constexpr Nanoseconds kBetween = 50_ms;

// One side; the other's is the same, with the address of the first.
std::vector<std::string> side_command(const std::string& program, uint64_t bytes,
                                      uint64_t iterations) {
  static int port = 20000 + static_cast<int>(::getpid() % 10000);
  port = port < 30000 ? port + 1 : 20001;  // below the ports that the kernel gives to clients
  std::vector<std::string> words{own_folder() + "noria_soft"};
  std::istringstream flags(program);
  for (std::string word; flags >> word;) words.push_back(word);
  for (const std::string& word :
       {std::string("-F"), std::string("-s"), std::to_string(bytes), std::string("-n"),
        std::to_string(iterations), std::string("-p"), std::to_string(port)})
    words.push_back(word);
  return words;
}

// What the client prints. It finds nobody until the server listens, and complains of that.
std::string output_of_pair(const std::vector<std::string>& server, Nanoseconds limit) {
  std::vector<std::string> client{"sh", "-c", R"(exec "$@" 2>/dev/null)", "sh"};
  client.insert(client.end(), server.begin(), server.end());
  client.emplace_back("127.0.0.1");
  const Nanoseconds deadline = now_ns() + limit;
  ProgramBeside beside(server);
  for (int i = 0; i < kTries && now_ns() < deadline && !beside.has_ended(); ++i) {
    ProgramEnd end = run_program(client, {}, deadline - now_ns());
    if (end.exit_code == 0) {
      beside.end(std::max<Nanoseconds>(deadline - now_ns(), 0));
      return std::move(end.output);
    }
    std::this_thread::sleep_for(std::chrono::nanoseconds(kBetween));
  }
  throw ToolError(Exit::environment,
                  "no client of this server ended well: " + command_text(server, {}));
}

}  // namespace

PerftestRow run_perftest(const std::string& program, uint64_t bytes, uint64_t iterations,
                         Nanoseconds limit) {
  const std::string output = output_of_pair(side_command(program, bytes, iterations), limit);
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
