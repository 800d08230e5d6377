#include "tests/tidy/source_file.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace noria::tidy {

namespace {

enum class Part { code, line_comment, block_comment, text, character, raw_text };

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '_'; }

// Walks the text once and says of every character which part of the language it belongs to.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text), parts_(text.size(), Part::code) {}

  std::vector<Part> scan() {
    while (at_ < text_.size()) step();
    return std::move(parts_);
  }

 private:
  char peek(size_t ahead) const { return at_ + ahead < text_.size() ? text_[at_ + ahead] : '\0'; }

  void take(Part part, size_t count) {
    for (; count > 0 && at_ < text_.size(); --count) parts_[at_++] = part;
  }

  void take_until(Part part, std::string_view end) {
    const size_t found = text_.find(end, at_);
    take(part, found == std::string_view::npos ? text_.size() - at_ : found - at_ + end.size());
  }

  void take_literal(Part part, char quote) {
    take(Part::code, 1);  // the quotes stay visible: they show where a literal stood
    while (at_ < text_.size() && text_[at_] != quote && text_[at_] != '\n')
      take(part, text_[at_] == '\\' ? 2 : 1);
    take(Part::code, 1);
  }

  void step() {
    const char previous = at_ == 0 ? ' ' : text_[at_ - 1];
    if (peek(0) == '/' && peek(1) == '/') return take_until(Part::line_comment, "\n");
    if (peek(0) == '/' && peek(1) == '*') return take_until(Part::block_comment, "*/");
    if (peek(0) == 'R' && peek(1) == '"' && !is_word(previous)) {
      const size_t open = text_.find('(', at_);
      if (open == std::string_view::npos) return take(Part::code, 1);
      const std::string end = ")" + std::string(text_.substr(at_ + 2, open - at_ - 2)) + "\"";
      return take_until(Part::raw_text, end);
    }
    if (peek(0) == '"') return take_literal(Part::text, '"');
    // 1'000 separates digits; it opens no literal.
    if (peek(0) == '\'' && !is_word(previous)) return take_literal(Part::character, '\'');
    take(Part::code, 1);
  }

  std::string_view text_;
  std::vector<Part> parts_;
  size_t at_ = 0;
};

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    lines.emplace_back(text.substr(0, end));
    if (end == std::string_view::npos) break;
    text.remove_prefix(end + 1);
  }
  return lines;
}

bool ends_with_any(std::string_view path, std::initializer_list<std::string_view> endings) {
  return std::any_of(endings.begin(), endings.end(),
                     [path](std::string_view ending) { return path.ends_with(ending); });
}

}  // namespace

bool SourceFile::is_under(std::string_view folder) const { return path.starts_with(folder); }

bool SourceFile::is_header() const { return ends_with_any(path, {".hpp", ".h"}); }

bool SourceFile::is_cpp() const {
  return is_header() || ends_with_any(path, {".cc", ".cu", ".c", ".def"});
}

bool SourceFile::is_product() const {
  return is_cpp() && (is_under("include/") || is_under("verbs/") || is_under("plugin/") ||
                      is_under("bucketing/"));
}

SourceFile make_source(std::string path, std::string_view text) {
  std::string code(text);
  std::string comments(text);
  const std::vector<Part> parts = Scanner(text).scan();
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\n') continue;
    const bool is_comment = parts[i] == Part::line_comment || parts[i] == Part::block_comment;
    if (parts[i] != Part::code) code[i] = ' ';
    if (!is_comment) comments[i] = ' ';
  }
  return {std::move(path), split_lines(text), split_lines(code), split_lines(comments)};
}

std::vector<SourceFile> read_tree(const std::string& root) {
  namespace fs = std::filesystem;
  std::vector<SourceFile> files;
  for (auto entry = fs::recursive_directory_iterator(root);
       entry != fs::recursive_directory_iterator(); ++entry) {
    const std::string name = entry->path().filename().string();
    const bool is_foreign = name.starts_with(".") || name == "__pycache__" ||
                            (entry.depth() == 0 && name.starts_with("build"));
    if (entry->is_directory()) {
      if (is_foreign) entry.disable_recursion_pending();
      continue;
    }
    if (is_foreign || !ends_with_any(name, {".cc", ".cu", ".c", ".hpp", ".h", ".def", ".md",
                                            ".cmake", ".txt", ".py", ".map"}))
      continue;
    std::ifstream stream(entry->path());
    std::stringstream text;
    text << stream.rdbuf();
    files.push_back(make_source(fs::relative(entry->path(), root).string(), text.str()));
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

}  // namespace noria::tidy
