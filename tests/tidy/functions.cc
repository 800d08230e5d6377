// functions_of(): finds function definitions by their braces. What stands before a brace decides
// what the brace opens; that is enough for formatted code, and a miss shows as a function that is
// not measured, never as a false finding in a neighbour.
#include <cctype>
#include <regex>

#include "tests/tidy/source_file.hpp"

namespace noria::tidy {

namespace {

enum class Opens { container, function, other };

std::string folded(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool blank = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (blank && (out.empty() || out.back() == ' ')) continue;
    out += blank ? ' ' : c;
  }
  while (!out.empty() && out.back() == ' ') out.pop_back();
  return out;
}

// Takes "template <class T, ...>" and "requires ..." off the front: their words mislead.
std::string without_template(std::string head) {
  while (head.starts_with("template")) {
    size_t at = head.find('<');
    if (at == std::string::npos) return head;
    int depth = 0;
    for (; at < head.size(); ++at) {
      if (head[at] == '<') ++depth;
      if (head[at] == '>' && --depth == 0) break;
    }
    head = folded(head.substr(std::min(at + 1, head.size())));
  }
  return head;
}

// Drops what stands inside parentheses, so that "f(a = b) {" shows no assignment.
std::string outside_parentheses(const std::string& head) {
  std::string out;
  int depth = 0;
  for (const char c : head) {
    if (c == '(' && depth++ == 0) out += '(';
    if (c == ')' && --depth == 0) {
      out += ')';
      continue;
    }
    if (depth == 0) out += c;
  }
  return out;
}

Opens classify(const std::string& whole_head) {
  static const std::regex kNamespace(R"(^(inline )?namespace\b)");
  static const std::regex kType(R"(^(typedef )?(class|struct|union)\b)");
  static const std::regex kAssignment(R"((^|[^=<>!+\-*/|&^%])=($|[^=]))");
  static const std::regex kSignatureEnd(R"(\)( (const|noexcept|override|final))*$)");
  const std::string head = outside_parentheses(without_template(folded(whole_head)));
  const bool has_parameters = head.find('(') != std::string::npos;
  if (std::regex_search(head, kNamespace)) return Opens::container;
  if (head.starts_with("extern") && !has_parameters) return Opens::container;
  if (std::regex_search(head, kType) && !std::regex_search(head, kSignatureEnd))
    return Opens::container;
  const bool is_operator = head.find("operator") != std::string::npos;
  if (has_parameters && (is_operator || !std::regex_search(head, kAssignment)))
    return Opens::function;
  return Opens::other;
}

std::string name_of(const std::string& head) {
  static const std::regex kName(R"(([A-Za-z_~][A-Za-z0-9_]*) ?\()");
  static const std::regex kAttribute(R"(^(NORIA_\w+|gnu::\w+|alignas|__attribute__|noexcept)$)");
  for (auto match = std::sregex_iterator(head.begin(), head.end(), kName);
       match != std::sregex_iterator(); ++match) {
    const std::string name = (*match)[1];
    if (!std::regex_match(name, kAttribute)) return name;
  }
  return {};
}

class Finder {
 public:
  explicit Finder(const SourceFile& file) : file_(file) {}

  std::vector<Function> find() {
    bool in_directive = false;
    for (line_ = 1; line_ <= file_.code.size(); ++line_) {
      const std::string& line = file_.code[line_ - 1];
      const size_t first = line.find_first_not_of(' ');
      in_directive = in_directive || (first != std::string::npos && line[first] == '#');
      if (!in_directive) {
        for (const char c : line) take(c);
        take(' ');
      }
      in_directive = in_directive && line.ends_with('\\');
    }
    if (pending_) finish_function(' ');  // the file ends with this function
    return std::move(found_);
  }

 private:
  void forget_head() {
    head_.clear();
    head_line_ = 0;
  }

  void take(char c) {
    if (body_depth_ > 0) return take_in_body(c);
    const bool blank = std::isspace(static_cast<unsigned char>(c)) != 0;
    if (pending_ && !blank) finish_function(c);
    if (parentheses_ == 0 && c == ';') return forget_head();
    if (parentheses_ == 0 && c == '{') return open();
    if (parentheses_ == 0 && c == '}') return forget_head();  // a container ends
    if (c == '(') ++parentheses_;
    if (c == ')') --parentheses_;
    if (head_line_ == 0 && !blank) head_line_ = line_;
    if (head_line_ != 0) head_ += c;
    static const std::regex kAccess(R"(^(public|private|protected) ?:$)");
    if (c == ':' && std::regex_match(folded(head_), kAccess)) forget_head();
  }

  void take_in_body(char c) {
    if (c == '{') ++body_depth_;
    if (c == '}' && --body_depth_ == 0) {
      end_line_ = line_;
      pending_ = body_is_function_;
    }
  }

  void open() {
    const Opens opens = classify(head_);
    if (opens == Opens::container) return forget_head();
    body_is_function_ = opens == Opens::function;
    body_depth_ = 1;
  }

  // What follows the brace that closed tells a body from a member's braces in front of one.
  void finish_function(char next) {
    pending_ = false;
    if (next == ',' || next == '{') return;
    found_.push_back(
        {folded(head_), name_of(without_template(folded(head_))), head_line_, end_line_});
    forget_head();
  }

  const SourceFile& file_;
  std::vector<Function> found_;
  std::string head_;
  size_t head_line_ = 0;
  size_t line_ = 0;
  size_t end_line_ = 0;
  int parentheses_ = 0;
  int body_depth_ = 0;
  bool body_is_function_ = false;
  bool pending_ = false;
};

}  // namespace

std::vector<Function> functions_of(const SourceFile& file) { return Finder(file).find(); }

}  // namespace noria::tidy
