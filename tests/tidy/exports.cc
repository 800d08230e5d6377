#include "tests/tidy/exports.hpp"

#include <regex>
#include <sstream>

namespace noria::tidy {

namespace {

struct Symbol {
  char type;
  std::string name;
};

// "0000000000001139 T ibv_open_device@@IBVERBS_1.1"
std::vector<Symbol> symbols_of(const std::string& nm) {
  static const std::regex kLine(R"(^[0-9a-f]+ ([A-Za-z]) ([^@\s]+).*$)");
  std::vector<Symbol> symbols;
  std::istringstream lines(nm);
  for (std::string line; std::getline(lines, line);) {
    std::smatch match;
    if (std::regex_match(line, match, kLine)) symbols.push_back({match.str(1)[0], match[2]});
  }
  return symbols;
}

}  // namespace

std::vector<std::string> check_exports(const std::string& nm, const ExportRule& rule) {
  const std::regex allowed(rule.name_pattern);
  std::vector<std::string> findings;
  for (const Symbol& symbol : symbols_of(nm)) {
    if (symbol.type == 'A') continue;  // a version node
    if (symbol.type == 'u')
      findings.push_back(symbol.name +
                         " is unique in the process (STB_GNU_UNIQUE): it pins the library, so that "
                         "dlclose does nothing");
    if (!std::regex_match(symbol.name, allowed))
      findings.push_back(symbol.name + " is exported; " + rule.reason);
  }
  return findings;
}

std::set<std::string> exported_names(const std::string& nm) {
  std::set<std::string> names;
  for (const Symbol& symbol : symbols_of(nm))
    if (symbol.type != 'A') names.insert(symbol.name);
  return names;
}

std::vector<std::string> check_needed(const std::string& readelf,
                                      const std::set<std::string>& allowed_stems) {
  static const std::regex kNeeded(R"(\(NEEDED\)[^\[]*\[([^\]]+)\])");
  std::vector<std::string> findings;
  for (auto match = std::sregex_iterator(readelf.begin(), readelf.end(), kNeeded);
       match != std::sregex_iterator(); ++match) {
    const std::string library = (*match)[1];
    if (!allowed_stems.contains(library.substr(0, library.find(".so"))))
      findings.push_back(library +
                         " is linked; it would be loaded into every process that loads us, and "
                         "where it is absent we could not be loaded at all");
  }
  return findings;
}

std::set<std::string> declared_functions(const std::string& header) {
  static const std::regex kDeclaration(R"(NORIA_API\s+[\w\s\*]*?(noria_\w+)\s*\()");
  std::set<std::string> names;
  for (auto match = std::sregex_iterator(header.begin(), header.end(), kDeclaration);
       match != std::sregex_iterator(); ++match)
    names.insert((*match)[1]);
  return names;
}

}  // namespace noria::tidy
