// A table of the tuner's: text from a file of the user's.
#include "plugin/tuner/decision.hpp"
#include "plugin/tuner/table.hpp"
#include "tests/fuzz/input.hpp"

namespace {

using namespace noria::plugin::tuner;

void check_index(const Table& table) {
  const Facts facts{.ranks = 16, .nodes = 2};
  const Index index = Index::make(table, facts);
  for (const Row& near : table.rows) {
    for (const uint64_t bytes : {near.bytes.first, near.bytes.last, near.bytes.last + 1}) {
      const Row* expected = nullptr;
      for (const Row& row : table.rows) {
        if (row.collective != near.collective || !is_for(row, facts) || !row.bytes.has(bytes))
          continue;
        expected = &row;
        break;
      }
      const auto found = index.find(near.collective, bytes);
      NORIA_CHECK((found.empty() ? nullptr : &table.rows[found[0]]) == expected,
                  "the index finds the first row that fits");
    }
  }
}

}  // namespace

int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto table = parse_table({reinterpret_cast<const char*>(data), size}, "fuzz.csv");
  if (!table) {
    NORIA_CHECK(noria::fuzz::is_one_line(table.failure()), "a refusal is one line");
    NORIA_CHECK(table.failure().starts_with("fuzz.csv:"), "it names the file");
    return 0;
  }
  const auto again = parse_table(text_of(*table), "again");
  NORIA_CHECK(again.is_ok(), "what is written is read");
  NORIA_CHECK(text_of(*again) == text_of(*table), "as the same");
  NORIA_CHECK(fingerprint_of(*again) == fingerprint_of(*table), "to choose the same by");
  if (table->rows.size() <= 200) check_index(*table);
  return 0;
}
