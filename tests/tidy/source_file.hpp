// SourceFile: a file of the tree as the rules see it: its lines three times over, once as they are,
// once with comments and literals blanked, once with all but the comments blanked.
//
// All three views have the same lines and columns, so that a finding in one names a place in all.
// The scanner knows comments, string, character and raw literals and digit separators; it does not
// preprocess.
//
// Threads: one at a time.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace noria::tidy {

struct SourceFile {
  std::string path;  // from the root of the repository, as "verbs/qp.cc"
  std::vector<std::string> lines;
  std::vector<std::string> code;      // comments and the insides of literals are blanks
  std::vector<std::string> comments;  // everything else is blanks

  bool is_under(std::string_view folder) const;  // "verbs/soft/"
  bool is_header() const;
  bool is_cpp() const;  // a header, a .cc, .c or .def: what the rules of the language apply to
  // What lives inside other people's processes: stricter rules than for tools and tests.
  bool is_product() const;
};

SourceFile make_source(std::string path, std::string_view text);

// Every file of the tree under `root` that is text of ours: no build folders, nothing hidden.
std::vector<SourceFile> read_tree(const std::string& root);

// A function definition: where its head begins and its body ends, counted from 1.
struct Function {
  std::string head;  // from the start of the declaration to the brace, blanks folded
  std::string name;  // the last identifier before the parameters
  size_t first_line = 0;
  size_t last_line = 0;

  size_t line_count() const { return last_line - first_line + 1; }
};

// The definitions at namespace and class level. Lambdas and local classes count as their function.
std::vector<Function> functions_of(const SourceFile& file);

}  // namespace noria::tidy
