// A table of choices: for which collective, sizes and hardware which algorithm and protocol, since
// when that is known, and how long it takes.
//
// One line a row, comma-separated; README.md of this folder has the columns. Strict: a line that is
// not understood refuses the whole table, with file, line, column and what was expected. What is
// written with text_of() is read as the same.
//
// Rows keep their order: the first that fits is the one that counts.
//
// Threads: plain values; the functions are pure but for read_table() and tables_in(), which read
// the file system.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.hpp"
#include "plugin/tuner/words.hpp"

namespace noria::plugin::tuner {

// Both ends are inside.
struct Range {
  uint64_t first = 0;
  uint64_t last = UINT64_MAX;

  bool has(uint64_t value) const { return first <= value && value <= last; }
  bool meets(const Range& other) const { return first <= other.last && other.first <= last; }
  bool covers(const Range& other) const { return first <= other.first && other.last <= last; }
  friend bool operator==(const Range&, const Range&) = default;
};

enum class LinkKind : uint8_t { any, infiniband, ethernet };

struct Link {
  LinkKind kind = LinkKind::any;
  uint32_t gbit = 0;  // of one port; 0: any

  friend bool operator==(const Link&, const Link&) = default;
};

struct Row {
  Collective collective = Collective::all_reduce;
  Range bytes;  // as NCCL counts them: of the whole message, over all ranks
  Range nodes, ranks_per_node, nics;
  Link link;
  std::optional<Gpu> gpu;  // none: any
  Range nccl;              // 23007 is 2.30.7

  Algorithm algorithm = Algorithm::ring;
  Protocol protocol = Protocol::simple;
  uint8_t channels = 0;      // 0: NCCL decides
  uint32_t chunk_bytes = 0;  // 0: NCCL decides

  bool is_predicted = false;  // else the two below mean nothing
  double fixed_us = 0, us_per_mib = 0;
  std::string provenance;  // which measurement, where, when; "modelled" where there is none

  // Nobody measured this choice there (says_modelled): it counts only against another that is
  // predicted too.
  bool is_modelled = false;

  double max_regret = 0;  // of its table
  uint32_t line = 0;      // in its file

  size_t cell() const { return cell_of(algorithm, protocol); }
  double predicted_us(uint64_t bytes_of_message) const {
    return fixed_us + us_per_mib * static_cast<double>(bytes_of_message) / (1024.0 * 1024.0);
  }
};

// Whether a provenance begins with the word for what nobody measured.
bool says_modelled(std::string_view provenance);

// A value of NCCL's own model that is another here: by its place among the doubles of
// abi::TunerConstants.
struct Constant {
  uint32_t place = 0;
  double value = 0;
};

struct Table {
  // Two runs of one measurement differ by as much.
  static constexpr double kMaxRegret = 0.05;

  double max_regret = kMaxRegret;
  std::vector<Row> rows;
  std::vector<Constant> constants;
};

// A row is some 200 bytes: what is longer is no table.
inline constexpr size_t kMostTableBytes = size_t{16} << 20;

// The failure is "file:line:column: ...".
Result<Table, std::string> parse_table(std::string_view text, const std::string& file);
// Of a regular file; whatever else stands at the path is refused.
Result<Table, std::string> read_table(const std::string& path);

// Where the tables that come with noria lie, beside its libraries.
inline constexpr const char* kTablesFolder = "noria/tables";
// The tables of a folder, in an order that is the same on every node; none where it is not there.
// The failure is of a folder that is there and cannot be read: "folder: why".
Result<std::vector<std::string>, std::string> tables_in(const std::string& folder);

// Single values as a row has them: "ib400", and "2.30.7" as 23007. False leaves no promise of the
// output.
bool parse_link(std::string_view text, Link* out);
bool parse_nccl_version(std::string_view text, uint64_t* out);

// A line without its end, and a whole file, with these lines for people in its head.
std::string text_of(const Row& row);
std::string text_of(const Table& table, const std::vector<std::string>& comments = {});

// What of this machine decides which rows are of use here.
struct Hardware {
  Link link;  // of the fastest ports
  uint64_t nics = 0;
  std::optional<Gpu> gpu;     // none: not known, and rows for a GPU do not fit
  uint64_t nccl_version = 0;  // 0: not known, and rows for a version do not fit
};

bool is_for(const Row& row, const Hardware& hardware);
std::string text_of(const Hardware& hardware);  // "8 NICs of ib400, hopper, NCCL 2.30.7"

// Takes the rows for other hardware out, and answers how many these were. A table that is for other
// hardware altogether loses its constants with its last row.
size_t keep_rows_for(const Hardware& hardware, Table* table);

// Of all that choices depend on, communicator aside: 0 for a table that chooses nothing.
uint64_t fingerprint_of(const Table& table);

}  // namespace noria::plugin::tuner
