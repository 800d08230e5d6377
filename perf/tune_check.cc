// noria_tune check: whether tables are understood, and what cannot be meant in them.

#include <cstdio>

#include "perf/command_line.hpp"
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

Exit check(const std::string& path) {
  const auto table = plugin::tuner::read_table(path);
  if (!table) throw usage_error(table.failure());
  if (table->rows.size() > kMostRowsCompared)
    throw usage_error(path + ": has " + std::to_string(table->rows.size()) +
                      " rows, and each is compared with each: check it in parts of 10000");
  const std::vector<std::string> findings = plugin::tuner::review(*table);
  for (const std::string& finding : findings)
    std::printf("%s: %s\n", path.c_str(), finding.c_str());
  if (!findings.empty()) return Exit::wrong_result;
  std::printf("%s: %zu rows, %zu constants, max_regret %g: all is well\n", path.c_str(),
              table->rows.size(), table->constants.size(), table->max_regret);
  return Exit::ok;
}

}  // namespace

int tune_check(int argc, char** argv) {
  std::vector<std::string> tables;
  CLI::App app(kHelp, "noria_tune check");
  app.add_option("TABLE", tables, "tables, as plugin/tuner/README.md says")->required();
  if (parse_command_line(app, argc, argv)) return 0;

  Exit worst = Exit::ok;
  for (const std::string& table : tables)
    if (const Exit exit = check(table); exit != Exit::ok) worst = exit;
  return static_cast<int>(worst);
}

}  // namespace noria::perf
