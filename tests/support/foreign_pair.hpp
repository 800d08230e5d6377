// A program that knows nothing of noria as server and as client, on the software HCA.
//
// Threads: one at a time.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/e2e/tool_runs.hpp"

namespace noria::perf {

struct Ends {
  ToolEnd server, client;
};

// Runs `words` under noria_soft with a port of its own (-p), and once more with the address of the
// first; the test fails where the first comes to listen on no port.
Ends run_pair_of(const std::vector<std::string>& words);

std::vector<std::string> words_of(const std::string& text);
bool is_installed(const std::string& program);

// ./check installs them all.
#define NORIA_SKIP_WITHOUT(program) \
  if (!is_installed(program)) GTEST_SKIP() << (program) << " is not installed (packages.txt)"

}  // namespace noria::perf
