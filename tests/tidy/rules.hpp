// The rules of the house, as functions from a file to what is wrong with it.
//
// Each message says the rule and its reason, not just "no". The rules know text, not types: they
// catch what a reader would see at a glance. What the compiler can say better is left to it.
//
// Threads: one at a time.
#pragma once

#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "tests/tidy/source_file.hpp"

namespace noria::tidy {

struct Violation {
  std::string rule;
  std::string path;
  size_t line = 0;  // 0: the file as a whole
  std::string text;
};

using Violations = std::vector<Violation>;

// "verbs/qp.cc:12: [words] ..."
std::string to_string(const Violation& violation);

// Which folder may include what.
Violations check_includes(const SourceFile& file);

// Words that have one home, or none.
Violations check_words(const SourceFile& file);

// Lengths of files, functions and lines; headers open with a contract.
Violations check_shape(const SourceFile& file);

// Functions declared NORIA_HOT, by folder and "Class::name", and what their bodies must not hold.
// The declarations stand in headers and the bodies mostly elsewhere, hence two passes.
using HotFunctions = std::map<std::string, std::set<std::string>>;
HotFunctions hot_functions(const std::vector<SourceFile>& files);
Violations check_hot(const SourceFile& file, const HotFunctions& hot);

// The path of a byte and every other file that a page names in backticks exist.
Violations check_names_on_page(const SourceFile& page, const std::vector<SourceFile>& files);

// The text between "<!-- NAME:begin ... -->" and "<!-- NAME:end -->" is `expected`.
Violations check_table(const SourceFile& page, const std::string& name,
                       const std::string& expected);

// The names of all tests of the tree, as TEST(Suite, Name) gives them.
std::set<std::string> tests_of(const std::vector<SourceFile>& files);

// A test that a page names, as *Its_name* or *Its_na...*, exists; and each point under a heading
// "The contract" names one, or a file of tests.
Violations check_tests_on_page(const SourceFile& page, const std::set<std::string>& tests);

// Each folder that holds sources has its README.md of one page.
Violations check_folders(const std::vector<SourceFile>& files);

}  // namespace noria::tidy
