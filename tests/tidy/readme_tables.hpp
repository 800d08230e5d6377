// The tables of README.md that are made from the tables of the code.
//
// A test compares them; `cmake --build build --target readme` writes them anew.
//
// Threads: one at a time.
#pragma once

#include <string>
#include <vector>

namespace noria::tidy {

struct ReadmeTable {
  std::string name;  // as in <!-- NAME:begin --> and <!-- NAME:end -->
  std::string text;  // whole lines of markdown
};

std::vector<ReadmeTable> readme_tables();

}  // namespace noria::tidy
