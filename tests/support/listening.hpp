// Whether somebody listens on a port, from the kernel's list: a call would be taken for a client's.
//
// Threads: any thread.
#pragma once

#include <array>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

namespace noria::perf {

// `net`: of which network, as /proc/<pid>/net.
inline bool is_listening(uint16_t port, const std::string& net = "/proc/net") {
  std::array<char, 16> wanted{};
  std::snprintf(wanted.data(), wanted.size(), ":%04X", port);
  for (const char* list : {"/tcp", "/tcp6"}) {
    std::ifstream file(net + list);
    for (std::string line; std::getline(file, line);) {
      std::istringstream words(line);
      std::string number, local, remote, state;
      words >> number >> local >> remote >> state;
      if (state == "0A" && local.ends_with(wanted.data())) return true;
    }
  }
  return false;
}

}  // namespace noria::perf
