// Writes the generated tables of a README.md anew, in place: write_readme FILE
#include <cstdio>
#include <fstream>
#include <sstream>

#include "tests/tidy/readme_tables.hpp"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: write_readme FILE\n");
    return 2;
  }
  std::stringstream text;
  text << std::ifstream(argv[1]).rdbuf();
  std::string page = text.str();
  for (const noria::tidy::ReadmeTable& table : noria::tidy::readme_tables()) {
    const size_t marker = page.find("<!-- " + table.name + ":begin");
    const size_t end = page.find("<!-- " + table.name + ":end");
    if (marker == std::string::npos || end == std::string::npos || end < marker) {
      std::fprintf(stderr, "%s has no table '%s'\n", argv[1], table.name.c_str());
      return 1;
    }
    const size_t begin = page.find('\n', marker) + 1;
    page.replace(begin, end - begin, table.text);
  }
  std::ofstream(argv[1]) << page;
  return 0;
}
