#include "perf/two_sides.hpp"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "base/units.hpp"
#include "perf/child_program.hpp"
#include "perf/exit_codes.hpp"

namespace noria::perf {
namespace {

constexpr int kTries = 100;
constexpr Nanoseconds kBetween = 50_ms;

std::vector<int> cores() {
  cpu_set_t set;
  CPU_ZERO(&set);
  ::sched_getaffinity(0, sizeof(set), &set);
  std::vector<int> found;
  for (int core = 0; core < CPU_SETSIZE; ++core)
    if (CPU_ISSET(core, &set)) found.push_back(core);
  return found;
}

std::vector<std::string> behind(std::vector<std::string> first,
                                const std::vector<std::string>& command) {
  first.insert(first.end(), command.begin(), command.end());
  return first;
}

}  // namespace

std::string output_of_client(const TwoSides& sides, Nanoseconds limit) {
  std::vector<std::string> server = sides.server, client = sides.client;
  if (sides.are_bound) {
    const std::vector<int> usable = cores();
    if (usable.size() < 2)
      throw ToolError(Exit::environment,
                      "two sides want a core each, and this process may use one");
    client = behind({"taskset", "-c", std::to_string(usable[0])}, client);
    server = behind({"taskset", "-c", std::to_string(usable[1])}, server);
  }
  // It finds nobody until the server listens, and complains of that.
  client = behind({"sh", "-c", R"(exec "$@" 2>/dev/null)", "sh"}, client);
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

int next_server_port() {
  static int port = 20000 + static_cast<int>(::getpid() % 10000);
  port = port < 30000 ? port + 1 : 20001;
  return port;
}

}  // namespace noria::perf
