#include "tests/tidy/readme_tables.hpp"

#include "base/counters.hpp"
#include "base/params.hpp"

namespace noria::tidy {

namespace {

// A bar would end the cell.
std::string cell(const std::string& text) {
  std::string out;
  for (const char c : text) out += c == '|' ? std::string("\\|") : std::string(1, c);
  return out;
}

std::string code_cell(const std::string& text) {
  return text.empty() ? "" : "`" + cell(text) + "`";
}

std::string params_table() {
  std::string text =
      "| variable, or NCCL's | default | takes | what it does, and when to change it |\n"
      "|---|---|---|---|\n";
  for (const ParamRow& row : param_rows(Params{}))
    text += "| `" + std::string(row.name) + "`" +
            (row.nccl_name.empty() ? "" : " `" + row.nccl_name + "`") + " | " +
            code_cell(row.default_text) + " | " + cell(row.accepts) + " | " + cell(row.sentence) +
            " |\n";
  return text;
}

std::string counters_table() {
  std::string text =
      "| counter | unit | what it counts |\n"
      "|---|---|---|\n";
  for (const CounterRow& row : kCounterRows)
    text += "| `" + std::string(row.name) + "` | " + row.unit + " | " + cell(row.sentence) + " |\n";
  return text;
}

}  // namespace

std::vector<ReadmeTable> readme_tables() {
  return {{"params", params_table()}, {"counters", counters_table()}};
}

}  // namespace noria::tidy
