// Lengths, contracts, names of files: what makes a file easy to find and to read.
#include <algorithm>
#include <array>
#include <filesystem>
#include <regex>

#include "tests/tidy/rules.hpp"

namespace noria::tidy {

namespace {

constexpr size_t kHeaderLines = 250;
constexpr size_t kPublicHeaderLines = 500;  // the manual of what it declares, in one place
constexpr size_t kSourceLines = 500;
constexpr size_t kFunctionLines = 70;
constexpr size_t kHotFunctionLines = 50;
constexpr size_t kColumns = 100;

// Columns as an editor counts them: continuation bytes of UTF-8 take none.
size_t columns(const std::string& line) {
  return static_cast<size_t>(std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0U) != 0x80U;
  }));
}

bool is_measured(const SourceFile& file) {
  return (file.is_product() || file.is_under("perf/")) && !file.path.ends_with(".def") &&
         !file.is_under("plugin/abi/");
}

void check_length(const SourceFile& file, Violations* out) {
  if (!is_measured(file)) return;
  const size_t limit = file.is_under("include/noria/") ? kPublicHeaderLines
                       : file.is_header()              ? kHeaderLines
                                                       : kSourceLines;
  if (file.lines.size() > limit)
    out->push_back({"length", file.path, 0,
                    std::to_string(file.lines.size()) + " lines; a " +
                        (file.is_header() ? "header" : "source") + " has at most " +
                        std::to_string(limit) + ": a file is one idea, this one may be two"});
  for (const Function& function : functions_of(file)) {
    if (function.line_count() <= kFunctionLines) continue;
    out->push_back({"length", file.path, function.first_line,
                    function.name + "() has " + std::to_string(function.line_count()) +
                        " lines; a function has at most " + std::to_string(kFunctionLines) +
                        ": one that decides, and small ones that do"});
  }
}

void check_columns(const SourceFile& file, Violations* out) {
  if (!file.is_cpp() || file.path.ends_with(".def")) return;  // a row of a table is one thing
  for (size_t i = 0; i < file.lines.size(); ++i) {
    // A long address or include cannot be broken.
    if (columns(file.lines[i]) <= kColumns || file.lines[i].find("://") != std::string::npos)
      continue;
    out->push_back({"length", file.path, i + 1,
                    std::to_string(columns(file.lines[i])) + " columns; a line has at most " +
                        std::to_string(kColumns) + ", so that two files fit side by side"});
  }
}

void check_contract(const SourceFile& file, Violations* out) {
  if (!file.is_header()) return;
  const auto says = [&](const std::vector<std::string>& view, std::string_view words) {
    return std::any_of(view.begin(), view.end(), [words](const std::string& line) {
      return line.find(words) != std::string::npos;
    });
  };
  if (!says(file.code, "#pragma once") && !says(file.code, "#ifndef"))
    out->push_back({"contract", file.path, 0, "a header guards itself with #pragma once"});
  if (!file.is_product()) return;
  const bool opens_with_comment =
      !file.lines.empty() && (file.lines[0].starts_with("//") || file.lines[0].starts_with("/*"));
  if (!opens_with_comment || !says(file.comments, "Threads:"))
    out->push_back({"contract", file.path, 1,
                    "a header opens with its contract: what it is, what it costs, what it refuses, "
                    "and a line 'Threads:' - nobody should open the .cc to learn how to use it"});
}

void check_name(const SourceFile& file, Violations* out) {
  static const std::regex kVague("(.*_)?(utils?|helpers?|misc|common|stuff)");
  const std::string stem = std::filesystem::path(file.path).stem().string();
  if (file.is_cpp() && std::regex_match(stem, kVague))
    out->push_back({"names", file.path, 0,
                    "a file is one idea with a name you would guess; what is common to nothing in "
                    "particular belongs to the idea that uses it"});
}

// The word before which an allocation, a lock, a system call or a log would begin.
const std::regex& slow_words() {
  static const std::regex words(
      R"(\b(new|make_unique|make_shared|malloc|calloc|MutexLock|log|snprintf)\b\s*[<(])"
      R"(|\bnew\s+[A-Za-z_:]|\bMutexLock\s+\w)");
  return words;
}

// "Ring::advance" of a head that says "Progress Ring::State::Ring::advance()".
std::string qualified_name(const Function& function) {
  const std::regex qualifier("(\\w+::)" + function.name + " ?\\(");
  std::smatch match;
  return (std::regex_search(function.head, match, qualifier) ? match.str(1) : "") + function.name;
}

}  // namespace

Violations check_shape(const SourceFile& file) {
  Violations out;
  check_length(file, &out);
  check_columns(file, &out);
  check_contract(file, &out);
  check_name(file, &out);
  return out;
}

HotFunctions hot_functions(const std::vector<SourceFile>& files) {
  static const std::regex kClass(
      R"(^\s*(?:class|struct)\s(?:[^;{(]|\([^)]*\))*?(\w+)\s*(final\s*)?)"
      R"((:[^;]*)?\{)");
  static const std::regex kDeclaration(R"(NORIA_HOT\b[^;{(]*?([A-Za-z_]\w*)\s*\()");
  HotFunctions hot;
  for (const SourceFile& file : files) {
    if (!file.is_product() || file.path == "include/base/check.hpp") continue;
    std::string owner;  // the class whose declarations these are; a closing brace ends it
    for (size_t i = 0; i < file.code.size(); ++i) {
      std::smatch match;
      if (std::regex_search(file.code[i], match, kClass)) owner = match.str(1) + "::";
      if (file.code[i].starts_with("}")) owner.clear();
      if (file.code[i].find("NORIA_HOT") == std::string::npos) continue;
      // The name may stand on the next line.
      const std::string text =
          file.code[i] + (i + 1 < file.code.size() ? " " + file.code[i + 1] : "");
      if (std::regex_search(text, match, kDeclaration))
        hot[std::filesystem::path(file.path).parent_path().string()].insert(owner + match.str(1));
    }
  }
  return hot;
}

Violations check_hot(const SourceFile& file, const HotFunctions& hot) {
  Violations out;
  const auto folder = hot.find(std::filesystem::path(file.path).parent_path().string());
  if (!file.is_product() || folder == hot.end()) return out;
  for (const Function& function : functions_of(file)) {
    if (!folder->second.contains(qualified_name(function)) &&
        function.head.find("NORIA_HOT") == std::string::npos)
      continue;
    if (function.line_count() > kHotFunctionLines)
      out.push_back({"hot", file.path, function.first_line,
                     function.name + "() has " + std::to_string(function.line_count()) +
                         " lines; on the data path a function has at most " +
                         std::to_string(kHotFunctionLines) + ": move rare branches out"});
    for (size_t line = function.first_line; line <= function.last_line; ++line) {
      std::smatch match;
      if (!std::regex_search(file.code[line - 1], match, slow_words())) continue;
      out.push_back({"hot", file.path, line,
                     "'" + match.str() + "' in " + function.name +
                         "(), which is NORIA_HOT: no allocation, lock, system call or log there; "
                         "move it into a cold function whose name says when"});
    }
  }
  return out;
}

}  // namespace noria::tidy
