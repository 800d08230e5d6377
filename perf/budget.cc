#include "perf/budget.hpp"

#include <charconv>
#include <set>
#include <sstream>

#include "perf/exit_codes.hpp"
#include "perf/format_text.hpp"

namespace noria::perf {
namespace {

uint64_t number(const std::string& text, uint64_t least, const std::string& what) {
  constexpr uint64_t kMost = 1'000'000'000;
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < least || value > kMost)
    throw usage_error(what + " is '" + text + "'; it takes " + std::to_string(least) + " to " +
                      std::to_string(kMost) + " instructions");
  return value;
}

const char* verdict(const Counted& row, double margin_percent) {
  if (row.is_exceeded(margin_percent)) return "EXCEEDED";
  if (row.budget.goal == 0) return "";
  return row.instructions <= static_cast<double>(row.budget.goal) ? "goal met" : "above goal";
}

}  // namespace

std::vector<Budget> parse_budgets(const std::string& text, const std::string& file) {
  std::vector<Budget> budgets;
  std::set<std::string> names;
  std::istringstream lines(text);
  std::string line;
  for (int n = 1; std::getline(lines, line); ++n) {
    std::istringstream words(line.substr(0, line.find('#')));
    Budget budget;
    std::string instructions, goal;
    if (!(words >> budget.name)) continue;
    const std::string place = file + ":" + std::to_string(n) + ": ";
    words >> instructions >> goal >> std::ws;
    if (!std::getline(words, budget.source))
      throw usage_error(place + "a line is: name budget goal source");
    budget.instructions = number(instructions, 1, place + "the budget of " + budget.name);
    budget.goal = number(goal, 0, place + "the goal of " + budget.name);
    if (!names.insert(budget.name).second)
      throw usage_error(place + budget.name + " has a budget already");
    budgets.push_back(std::move(budget));
  }
  if (budgets.empty()) throw usage_error(file + ": no budget stands in it");
  return budgets;
}

std::string budget_table(const std::vector<Counted>& rows, double margin_percent) {
  std::string text = format_text("# %-22s %12s %9s %7s %7s\n", "operation", "instructions",
                                 "budget", "ratio", "goal");
  for (const Counted& row : rows) {
    const std::string goal = row.budget.goal == 0 ? "-" : std::to_string(row.budget.goal);
    text += format_text("  %-22s %12.1f %9llu %7.3f %7s  %s\n", row.budget.name.c_str(),
                        row.instructions, static_cast<unsigned long long>(row.budget.instructions),
                        row.ratio(), goal.c_str(), verdict(row, margin_percent));
  }
  return text;
}

nlohmann::ordered_json budget_json(const std::vector<Counted>& rows, double margin_percent) {
  nlohmann::ordered_json json{{"margin_percent", margin_percent},
                              {"rows", nlohmann::ordered_json::array()}};
  for (const Counted& row : rows)
    json["rows"].push_back({{"name", row.budget.name},
                            {"instructions", row.instructions},
                            {"budget", row.budget.instructions},
                            {"ratio", row.ratio()},
                            {"goal", row.budget.goal},
                            {"source", row.budget.source},
                            {"is_exceeded", row.is_exceeded(margin_percent)}});
  return json;
}

}  // namespace noria::perf
