// noria_tune: works on the tables that NCCL's tuner chooses by.

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>

#include "perf/command_line.hpp"
#include "perf/exit_codes.hpp"
#include "perf/nccl_tests_text.hpp"
#include "plugin/tuner/review.hpp"

namespace noria::perf {
namespace {

constexpr const char* kName = "noria_tune";

constexpr const char* kHelp =
    "Works on the tables by which noria's tuner chooses for NCCL (plugin/tuner/README.md).\n"
    "Usage: noria_tune check TABLE...\n"
    "       noria_tune rows LOG...\n"
    "\n"
    "  check   whether each table is understood, and what cannot be meant in it: rows that\n"
    "          are never reached, that contradict each other, or that count before a faster\n"
    "          one; of tables of up to 10000 rows\n"
    "  rows    what nccl-tests measured, one line a row, of its output as logs have it:\n"
    "          versions since 2.13, tags of mpirun and srun, rows that other lines cut,\n"
    "          several tables. Columns are cut by tabs; - is what the log has not. A table\n"
    "          that is not to be trusted is named on standard error\n"
    "\n"
    "Options:\n"
    "  -h,--help  this text\n"
    "\n"
    "  noria_tune check ours.csv && NORIA_TUNER_TABLE=$PWD/ours.csv srun ...\n"
    "  all_reduce_perf -b 8 -e 8G -f 2 | tee log; noria_tune rows log\n"
    "\n"
    "Exit: 0 all is well, 1 a table has what cannot be meant, 2 usage, or a file that is not\n"
    "what it should be.\n";

constexpr size_t kMostRowsCompared = 10'000;  // each with each: half a second
constexpr size_t kLongestLog = size_t{256} << 20;

// Pipes too, so the end is not known before it is read.
std::string read_log(const std::string& path) {
  const auto cannot = [&](const std::string& why) { return usage_error(path + ": " + why); };
  const std::unique_ptr<FILE, int (*)(FILE*)> file(std::fopen(path.c_str(), "rb"), &std::fclose);
  if (file == nullptr) throw cannot("cannot be read: " + std::string(std::strerror(errno)));
  std::string text;
  std::vector<char> piece(1 << 20);
  while (const size_t bytes = std::fread(piece.data(), 1, piece.size(), file.get())) {
    text.append(piece.data(), bytes);
    if (text.size() > kLongestLog) throw cannot("is longer than any log: 256 MiB");
  }
  if (std::ferror(file.get()) != 0)
    throw cannot("cannot be read: " + std::string(std::strerror(errno)));
  return text;
}

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

const char* or_dash(const std::string& text) { return text.empty() ? "-" : text.c_str(); }

void print(const LoggedHalf& half) {
  std::printf("\t%s\t%s\t%s\t%s", or_dash(half.time_us), or_dash(half.algbw), or_dash(half.busbw),
              or_dash(half.wrong));
}

Exit print_rows(const std::string& path) {
  const NcclTestsLog log = parse_nccl_tests(read_log(path));
  if (log.tables.empty()) throw usage_error(path + ": has no row of nccl-tests");
  std::printf(
      "size_bytes\tcount\ttype\tredop\troot\ttime_us_oop\talgbw_oop\tbusbw_oop\twrong_oop\t"
      "time_us_ip\talgbw_ip\tbusbw_ip\twrong_ip\ttable\tline\tcollective\n");
  for (size_t i = 0; i < log.tables.size(); ++i) {
    const LoggedTable& table = log.tables[i];
    const std::string number = log.is_interleaved ? "-" : std::to_string(i + 1);
    for (const LoggedRow& row : table.rows) {
      std::printf("%llu\t%llu\t%s\t%s\t%s", static_cast<unsigned long long>(row.bytes),
                  static_cast<unsigned long long>(row.count), row.type.c_str(), or_dash(row.redop),
                  or_dash(row.root));
      print(row.out_of_place);
      print(row.in_place);
      std::printf("\t%s\t%zu\t%s\n", number.c_str(), row.line, or_dash(table.collective));
    }
    if (const std::string fault = fault_of(table, log); !fault.empty())
      std::fprintf(stderr, "%s: %s: table %s is not to be trusted: %s\n", kName, path.c_str(),
                   number.c_str(), fault.c_str());
  }
  return Exit::ok;
}

int body(int argc, char** argv) {
  const std::vector<std::string> words(argv + 1, argv + argc);
  const auto is_help = [](const std::string& word) { return word == "-h" || word == "--help"; };
  if (std::any_of(words.begin(), words.end(), is_help)) {
    std::fputs(kHelp, stdout);
    return 0;
  }
  if (words.empty()) throw usage_error("it takes check or rows; --help shows how");
  const bool is_check = words[0] == "check";
  if (!is_check && words[0] != "rows")
    throw usage_error("'" + words[0] + "' is not what this tool does; it takes check or rows");
  if (words.size() < 2) throw usage_error(words[0] + " names no file");
  for (const std::string& word : words)
    if (word.starts_with("-")) throw usage_error(word + " is not a flag of this tool: --help is");
  Exit worst = Exit::ok;
  for (size_t i = 1; i < words.size(); ++i)
    if (const Exit exit = is_check ? check(words[i]) : print_rows(words[i]); exit != Exit::ok)
      worst = exit;
  return static_cast<int>(worst);
}

}  // namespace
}  // namespace noria::perf

int main(int argc, char** argv) {
  return noria::perf::run_tool(noria::perf::kName, &noria::perf::body, argc, argv);
}
