#include "perf/log_fault.hpp"

#include <cstdlib>
#include <map>
#include <tuple>

namespace noria::perf {
namespace {

// The line where sizes of one type, operation and root no longer rise, or 0. A table may begin anew
// (nccl-tests -N), and have a size twice, where that is rounded to what ranks share.
size_t falling_line(const LoggedTable& table) {
  struct Sizes {
    uint64_t first, last;
  };
  std::map<std::tuple<std::string, std::string, std::string>, Sizes> seen;
  for (const LoggedRow& row : table.rows) {
    const auto [at, is_new] =
        seen.try_emplace({row.type, row.redop, row.root}, Sizes{row.bytes, row.bytes});
    Sizes& sizes = at->second;
    const bool is_again = !is_new && row.bytes == sizes.last && table.has_two_ends;
    if (row.bytes != sizes.first && (row.bytes < sizes.last || is_again)) return row.line;
    sizes.last = row.bytes;
  }
  return 0;
}

}  // namespace

std::string fault_of(const LoggedTable& table, const NcclTestsLog& log) {
  if (log.is_interleaved) return "several programs print at once: was it built without MPI?";
  if (table.ranks == 1) return "of one rank, which sends nothing";
  if (!table.has_end) return "it ends without its average: cut off, or the program died";
  if (const size_t line = falling_line(table); line != 0)
    return "its sizes do not rise at line " + std::to_string(line) +
           ": do several programs print at once?";
  for (const LoggedRow& row : table.rows)
    for (const LoggedHalf* half : {&row.out_of_place, &row.in_place})
      if (half->is_there() && half->wrong != "N/A" &&
          std::strtod(half->wrong.c_str(), nullptr) >= 1)
        return "line " + std::to_string(row.line) + " has wrong results";
  return "";
}

}  // namespace noria::perf
