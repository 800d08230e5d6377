#include "tests/support/foreign_pair.hpp"

#include <unistd.h>

#include <fstream>
#include <sstream>

#include "base/clock.hpp"
#include "base/units.hpp"
#include "tests/support/listening.hpp"

namespace noria::perf {
namespace {

bool has_ended(pid_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/stat");
  std::string text;
  std::getline(file, text);
  return text.empty() || text.find(") Z ") != std::string::npos;
}

// True once it listens; false if it ended, or after 20 s.
bool comes_to_listen(const RunningTool& server, uint16_t port) {
  for (const Nanoseconds limit = now_ns() + 20_s; now_ns() < limit; ::usleep(1000)) {
    if (is_listening(port)) return true;
    if (has_ended(server.pid())) return false;
  }
  return false;
}

}  // namespace

Ends run_pair_of(const std::vector<std::string>& words) {
  std::string refused;
  for (int attempt = 0; attempt < 5; ++attempt) {
    const uint16_t port = free_port();
    std::vector<std::string> command{"noria_soft"};
    command.insert(command.end(), words.begin(), words.end());
    command.insert(command.end(), {"-p", std::to_string(port)});
    RunningTool server(command);
    if (!comes_to_listen(server, port)) {
      const ToolEnd end = server.end();
      refused += end.out + end.err;
      continue;
    }
    command.emplace_back("127.0.0.1");
    Ends ends;
    ends.client = run_tool_to_end(command);
    ends.server = server.end();
    return ends;
  }
  ADD_FAILURE() << "the server came to listen on no port: " << refused;
  return {};
}

std::vector<std::string> words_of(const std::string& text) {
  std::istringstream stream(text);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

bool is_installed(const std::string& program) {
  return std::system(("command -v " + program + " >/dev/null").c_str()) == 0;
}

}  // namespace noria::perf
