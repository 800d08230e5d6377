// What a shared library shows to the process that loads it, judged from the output of nm and
// readelf.
//
// Threads: one at a time.
#pragma once

#include <set>
#include <string>
#include <vector>

namespace noria::tidy {

struct ExportRule {
  std::string name_pattern;  // every defined dynamic symbol matches it, version apart
  std::string reason;
};

// `nm` is the output of nm -D --defined-only. One text a finding.
std::vector<std::string> check_exports(const std::string& nm, const ExportRule& rule);

// The names that it defines, without versions.
std::set<std::string> exported_names(const std::string& nm);

// `readelf` is the output of readelf -d: which libraries are loaded with this one.
std::vector<std::string> check_needed(const std::string& readelf,
                                      const std::set<std::string>& allowed_stems);

// The functions that a C header declares with NORIA_API.
std::set<std::string> declared_functions(const std::string& header);

}  // namespace noria::tidy
