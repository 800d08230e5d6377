// noria_tune rows: what nccl-tests measured, one line a row.

#include <cstdio>

#include "perf/command_line.hpp"
#include "perf/log_fault.hpp"
#include "perf/log_file.hpp"
#include "perf/nccl_json_log.hpp"
#include "perf/tune_commands.hpp"

namespace noria::perf {
namespace {

constexpr const char* kHelp =
    "Prints what nccl-tests measured, one line a row, of its JSON (-J) or its output as logs have "
    "it: "
    "versions since 2.13, tags of mpirun and srun, rows that other lines cut, several tables. "
    "Columns are "
    "cut by tabs; - is what the log has not. A table that is not to be trusted is named on "
    "standard error.\n"
    "  all_reduce_perf -b 8 -e 8G -f 2 | tee log; noria_tune rows log\n"
    "Exit: 0 all right, 2 usage, or a file without such a row.";

const char* or_dash(const std::string& text) { return text.empty() ? "-" : text.c_str(); }

void print(const LoggedHalf& half) {
  std::printf("\t%s\t%s\t%s\t%s", or_dash(half.time_us), or_dash(half.algbw), or_dash(half.busbw),
              or_dash(half.wrong));
}

void print_rows(const std::string& path) {
  const NcclTestsLog log = parse_nccl_log(read_log(path), path);
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
      std::fprintf(stderr, "noria_tune: %s: table %s is not to be trusted: %s\n", path.c_str(),
                   number.c_str(), fault.c_str());
  }
}

}  // namespace

int tune_rows(int argc, char** argv) {
  std::vector<std::string> logs;
  CLI::App app(kHelp, "noria_tune rows");
  app.add_option("LOG", logs, "output of nccl-tests")->required();
  if (parse_command_line(app, argc, argv)) return 0;

  for (const std::string& log : logs) print_rows(log);
  return 0;
}

}  // namespace noria::perf
