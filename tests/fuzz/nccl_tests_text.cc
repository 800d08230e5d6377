// What nccl-tests printed: text from a file of the user's, with anything between.
#include "perf/nccl_tests_text.hpp"

#include "perf/log_fault.hpp"
#include "tests/fuzz/input.hpp"

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace noria::perf;  // NOLINT: the target is of one room
  const NcclTestsLog log = parse_nccl_tests({reinterpret_cast<const char*>(data), size});
  size_t before = 0;
  for (const LoggedTable& table : log.tables) {
    NORIA_CHECK(!table.rows.empty(), "a table has rows");
    for (const LoggedRow& row : table.rows) {
      NORIA_CHECK(row.line > before && row.line <= size + 1, "rows stand one behind the other");
      before = row.line;
      NORIA_CHECK(row.out_of_place.is_there() || !row.in_place.is_there(), "halves come in order");
    }
    const std::string fault = fault_of(table, log);
    NORIA_CHECK(fault.empty() || noria::fuzz::is_one_line(fault), "a fault is one line");
  }
  NORIA_CHECK(!log.is_interleaved || log.tables.size() <= 1, "rows of nobody stand in one table");
  return 0;
}
