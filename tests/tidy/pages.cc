// What the pages for people promise: that the files they name exist, and that their tables are the
// tables of the code.
#include <algorithm>
#include <filesystem>
#include <regex>
#include <set>

#include "tests/tidy/rules.hpp"

namespace noria::tidy {

namespace {

const SourceFile* find_file(const std::vector<SourceFile>& files, const std::string& path) {
  const auto found = std::find_if(files.begin(), files.end(),
                                  [&](const SourceFile& file) { return file.path == path; });
  return found == files.end() ? nullptr : &*found;
}

bool folder_exists(const std::vector<SourceFile>& files, std::string folder) {
  if (!folder.ends_with('/')) folder += '/';
  return std::any_of(files.begin(), files.end(),
                     [&](const SourceFile& file) { return file.is_under(folder); });
}

bool has_word(const SourceFile& file, const std::string& word) {
  const std::regex pattern("\\b" + word + "\\b");
  return std::any_of(file.code.begin(), file.code.end(),
                     [&](const std::string& line) { return std::regex_search(line, pattern); });
}

}  // namespace

Violations check_names_on_page(const SourceFile& page, const std::vector<SourceFile>& files) {
  // `verbs/qp.cc` or `verbs/` or `verbs/qp.cc: post`. Names in other folders are not ours to check.
  static const std::regex kName(
      R"(`((?:include|base|noria|verbs|plugin|bucketing|perf|examples|tests)/[\w./-]*))"
      R"((?:: ?([A-Za-z_]\w*))?[^`]*`)");
  Violations out;
  for (size_t i = 0; i < page.lines.size(); ++i) {
    const std::string& line = page.lines[i];
    for (auto match = std::sregex_iterator(line.begin(), line.end(), kName);
         match != std::sregex_iterator(); ++match) {
      std::string path = (*match)[1];
      const std::string function = (*match)[2];
      if (path.starts_with("base/") || path.starts_with("noria/")) path = "include/" + path;
      const SourceFile* file = find_file(files, path);
      if (file == nullptr && !folder_exists(files, path)) {
        out.push_back({"map", page.path, i + 1,
                       "names " + path +
                           ", which is not there: a map "
                           "that is wrong is worse than none"});
      } else if (!function.empty() && (file == nullptr || !has_word(*file, function))) {
        out.push_back({"map", page.path, i + 1,
                       "says that " + path + " has " + function +
                           ", which it has not: a map that is wrong is worse than none"});
      }
    }
  }
  return out;
}

std::set<std::string> tests_of(const std::vector<SourceFile>& files) {
  static const std::regex kTest(R"(\bTEST(?:_[FP])?\(\s*\w+,\s*(\w+)\))");
  std::set<std::string> names;
  for (const SourceFile& file : files) {
    if (!file.is_under("tests/")) continue;
    std::string code;  // a long name stands on the line after its suite
    for (const std::string& line : file.code) code += line + "\n";
    for (auto match = std::sregex_iterator(code.begin(), code.end(), kTest);
         match != std::sregex_iterator(); ++match)
      names.insert((*match)[1]);
  }
  return names;
}

namespace {

// "A_table_has_..." is the beginning of a name; "..." may stand inside too.
bool is_test(const std::string& shown, const std::set<std::string>& tests) {
  if (tests.contains(shown)) return true;
  static const std::regex kGap(R"(\.\.\.)");
  const std::regex name(std::regex_replace(shown, kGap, "\\w*"));
  return std::any_of(tests.begin(), tests.end(),
                     [&](const std::string& test) { return std::regex_match(test, name); });
}

}  // namespace

Violations check_tests_on_page(const SourceFile& page, const std::set<std::string>& tests) {
  // A word in italics with an underscore.
  static const std::regex kName(R"(\*((?:\w|\.\.\.)*_(?:\w|\.\.\.)*)\*)");
  static const std::regex kShown(R"(\*[\w.]*_[\w.]*\*|`tests/\w+/\w+\.cc`)");
  Violations out;
  bool is_contract = false;
  for (size_t i = 0; i < page.lines.size(); ++i) {
    const std::string& line = page.lines[i];
    for (auto match = std::sregex_iterator(line.begin(), line.end(), kName);
         match != std::sregex_iterator(); ++match)
      if (!is_test((*match)[1], tests))
        out.push_back({"tests", page.path, i + 1,
                       "names the test " + match->str(1) +
                           ", and there is none: what nothing shows may not be so"});
    if (line.starts_with("#")) is_contract = line == "## The contract";
    if (!is_contract || !line.starts_with("- ")) continue;
    std::string point = line;
    for (size_t next = i + 1; next < page.lines.size() && page.lines[next].starts_with("  ");
         ++next)
      point += "\n" + page.lines[next];
    if (!std::regex_search(point, kShown))
      out.push_back({"tests", page.path, i + 1,
                     "promises what no test shows: name the test that fails where it is broken"});
  }
  return out;
}

Violations check_table(const SourceFile& page, const std::string& name,
                       const std::string& expected) {
  std::string actual;
  bool is_inside = false;
  bool was_found = false;
  size_t begin = 0;
  for (size_t i = 0; i < page.lines.size(); ++i) {
    if (page.lines[i].starts_with("<!-- " + name + ":end")) is_inside = false;
    if (is_inside) actual += page.lines[i] + "\n";
    if (!page.lines[i].starts_with("<!-- " + name + ":begin")) continue;
    is_inside = was_found = true;
    begin = i + 1;
  }
  if (!was_found || is_inside)
    return {{"tables", page.path, begin,
             "has no table '" + name + "' between <!-- " + name + ":begin --> and <!-- " + name +
                 ":end -->"}};
  if (actual == expected) return {};
  return {{"tables", page.path, begin,
           "its table '" + name +
               "' is not that of the code; "
               "`cmake --build build --target readme` writes it anew"}};
}

Violations check_folders(const std::vector<SourceFile>& files) {
  // The rungs of the tests are told in one page; headers that are installed or shared, too.
  static const std::set<std::string> kRooms{"include",    "verbs",    "verbs/transport",
                                            "verbs/soft", "plugin",   "bucketing",
                                            "perf",       "examples", "tests"};
  Violations out;
  for (const std::string& room : kRooms) {
    const bool has_sources = std::any_of(files.begin(), files.end(), [&](const SourceFile& file) {
      return file.is_cpp() && file.is_under(room + "/");
    });
    const SourceFile* page = find_file(files, room + "/README.md");
    if (has_sources && page == nullptr)
      out.push_back({"pages", room, 0,
                     "has no README.md: a visitor must know which room this is, "
                     "what its rules are and where to look"});
  }
  return out;
}

std::string to_string(const Violation& violation) {
  const std::string line = violation.line == 0 ? "" : ":" + std::to_string(violation.line);
  return violation.path + line + ": [" + violation.rule + "] " + violation.text;
}

}  // namespace noria::tidy
