// Budgets of instructions: the file that holds them, and the verdict on what was counted.
//
// A line of the file is "name budget goal source": what one operation may cost on one side, what it
// should cost (0: no goal), and where the two come from. '#' begins a comment.
//
// Threads: any thread.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace noria::perf {

struct Budget {
  std::string name;
  uint64_t instructions = 0;  // a call or message and side
  uint64_t goal = 0;          // 0: none
  std::string source;
};

// Throws ToolError (usage) that names file, line and what is wrong.
std::vector<Budget> parse_budgets(const std::string& text, const std::string& file);

struct Counted {
  Budget budget;
  double instructions = 0;

  double ratio() const { return instructions / static_cast<double>(budget.instructions); }
  // `margin_percent` is for compilers and libraries other than those of the budget.
  bool is_exceeded(double margin_percent) const { return ratio() > 1 + margin_percent / 100; }
};

std::string budget_table(const std::vector<Counted>& rows, double margin_percent);
nlohmann::ordered_json budget_json(const std::vector<Counted>& rows, double margin_percent);

}  // namespace noria::perf
