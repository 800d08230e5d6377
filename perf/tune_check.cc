// noria_tune check: whether tables are understood, and what cannot be meant in them.

#include <cstdio>

#include "perf/command_line.hpp"
#include "perf/json_text.hpp"
#include "perf/tune_commands.hpp"
#include "plugin/tuner/review.hpp"

namespace noria::perf {
namespace {

constexpr const char* kHelp =
    "Says whether each table is understood, and what cannot be meant in it: rows that are never "
    "reached, that contradict each other, or that count before a faster one; of tables of up to "
    "10000 rows.\n"
    "  noria_tune check ours.csv && NORIA_TUNER_TABLE=$PWD/ours.csv srun ...\n"
    "Exit: 0 all is well, 1 a table has what cannot be meant, 2 usage, or a file that is no table.";

constexpr size_t kMostRowsCompared = 10'000;  // each with each: half a second

struct Checked {
  plugin::tuner::Table table;
  std::vector<std::string> findings;
};

Checked check(const std::string& path) {
  auto table = plugin::tuner::read_table(path);
  if (!table) throw usage_error(table.failure());
  if (table->rows.size() > kMostRowsCompared)
    throw usage_error(path + ": has " + std::to_string(table->rows.size()) +
                      " rows, and each is compared with each: check it in parts of 10000");
  std::vector<std::string> findings = plugin::tuner::review(*table);
  return {*std::move(table), std::move(findings)};
}

void print(const std::string& path, const Checked& checked) {
  for (const std::string& finding : checked.findings)
    std::printf("%s: %s\n", path.c_str(), finding.c_str());
  if (checked.findings.empty())
    std::printf("%s: %zu rows, %zu constants, max_regret %g: all is well\n", path.c_str(),
                checked.table.rows.size(), checked.table.constants.size(),
                checked.table.max_regret);
}

nlohmann::ordered_json json_of(const std::string& path, const Checked& checked) {
  return {{"table", path},
          {"rows", checked.table.rows.size()},
          {"constants", checked.table.constants.size()},
          {"max_regret", checked.table.max_regret},
          {"findings", checked.findings}};
}

}  // namespace

int tune_check(int argc, char** argv) {
  std::vector<std::string> tables;
  CLI::App app(kHelp, "noria_tune check");
  app.add_option("TABLE", tables, "tables, as plugin/tuner/README.md says")->required();
  bool is_json = false;
  app.add_flag("--json", is_json, "print JSON: a list, with the findings of each table");
  if (parse_command_line(app, argc, argv)) return 0;

  Exit worst = Exit::ok;
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const std::string& table : tables) {
    const Checked checked = check(table);
    if (!checked.findings.empty()) worst = Exit::wrong_result;
    if (is_json)
      all.push_back(json_of(table, checked));
    else
      print(table, checked);
  }
  if (is_json) std::printf("%s\n", json_text(all).c_str());
  return static_cast<int>(worst);
}

}  // namespace noria::perf
