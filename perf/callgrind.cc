#include "perf/callgrind.hpp"

#include <charconv>
#include <map>
#include <string>

namespace noria::perf {
namespace {

// "(3) /usr/lib/libc.so.6" names an object, "(3)" means it from then on.
class Names {
 public:
  std::string resolve(std::string_view text) {
    const size_t close = text.find(')');
    if (!text.starts_with("(") || close == std::string_view::npos) return std::string(text);
    std::string& name = names_[std::string(text.substr(0, close))];
    if (close + 2 < text.size()) name = text.substr(close + 2);
    return name;
  }

 private:
  std::map<std::string, std::string> names_;
};

// "16 5", "+2 5", "* 5": a position, then the cost. A position alone costs nothing.
uint64_t cost_of(std::string_view line) {
  const size_t space = line.find(' ');
  uint64_t cost = 0;
  if (space != std::string_view::npos)
    std::from_chars(line.data() + space + 1, line.data() + line.size(), cost);
  return cost;
}

bool is_cost(std::string_view line) {
  constexpr std::string_view kBegins = "0123456789+-*";
  return !line.empty() && kBegins.find(line.front()) != std::string_view::npos;
}

}  // namespace

std::optional<uint64_t> instructions_outside(std::string_view text, std::string_view library,
                                             std::string_view program) {
  Names objects;
  bool counts_instructions = false;
  bool is_inside = false, is_program = false, calls_inside = false, is_call = false;
  uint64_t own = 0, calls = 0;
  while (!text.empty()) {
    const size_t end = text.find('\n');
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    if (line.starts_with("events: ")) {
      counts_instructions = line == "events: Ir";
    } else if (line.starts_with("ob=")) {
      const std::string object = objects.resolve(line.substr(3));
      is_inside = object.ends_with(library);
      is_program = !program.empty() && object.ends_with(program);
      calls_inside = is_inside;
    } else if (line.starts_with("cob=")) {
      calls_inside = objects.resolve(line.substr(4)).ends_with(library);
    } else if (line.starts_with("calls=")) {
      is_call = true;  // the next line is the cost of all that the call did
    } else if (is_cost(line)) {
      if (!is_call)
        own += is_program ? 0 : cost_of(line);
      else if (calls_inside && !is_inside)
        calls += cost_of(line);
      if (is_call) calls_inside = is_inside;
      is_call = false;
    }
  }
  if (!counts_instructions || calls > own) return std::nullopt;
  return own - calls;
}

}  // namespace noria::perf
