// parse_table() and text_of(): the columns of a row, each with its reader and its writer.
#include <array>
#include <cstring>
#include <iterator>

#include "base/value_text.hpp"
#include "plugin/abi/tuner.hpp"
#include "plugin/tuner/table.hpp"

namespace noria::plugin::tuner {
namespace {

constexpr std::string_view kHead = "noria_table";
constexpr std::string_view kVersion = "1";
constexpr std::string_view kRegret = "max_regret";
constexpr std::string_view kConstant = "constant";

// ---- values -------------------------------------------------------------------------------------

using ReadNumber = bool (*)(std::string_view text, uint64_t* out);

bool read_count(std::string_view text, uint64_t* out) {
  const bool has_suffix = !text.empty() && (text.back() < '0' || text.back() > '9');
  return !has_suffix && detail::parse_uint(text, out);
}

// "2.30.7"; `otherwise` is the patch of "2.30".
bool read_version(std::string_view text, uint64_t otherwise, uint64_t* out) {
  uint64_t major = 0, minor = 0, patch = otherwise;
  if (std::count(text.begin(), text.end(), '.') < 1) return false;
  const std::string_view first = detail::take_until(&text, '.');
  const size_t dot = text.find('.');
  if (!read_count(first, &major) || !read_count(text.substr(0, dot), &minor)) return false;
  if (dot != std::string_view::npos && !read_count(text.substr(dot + 1), &patch)) return false;
  if (major > 99 || minor > 99 || patch > 99) return false;
  *out = major * 10000 + minor * 100 + patch;
  return true;
}
bool read_first_version(std::string_view text, uint64_t* out) { return read_version(text, 0, out); }
bool read_last_version(std::string_view text, uint64_t* out) { return read_version(text, 99, out); }

// "*", "a", "a-" or "a-b".
bool read_range(std::string_view text, ReadNumber first, ReadNumber last, Range* out) {
  if (text == "*") return *out = Range(), true;
  const size_t dash = text.find('-');
  if (!first(text.substr(0, dash), &out->first)) return false;
  out->last = UINT64_MAX;
  if (dash == std::string_view::npos) return last(text, &out->last);
  if (dash + 1 == text.size()) return true;
  return last(text.substr(dash + 1), &out->last) && out->first <= out->last;
}
bool read_counts(std::string_view text, Range* out) {
  return read_range(text, read_count, read_count, out);
}
// The end of a range of sizes is where the next begins.
bool read_sizes(std::string_view text, Range* out) {
  if (!read_range(text, detail::parse_uint, detail::parse_uint, out)) return false;
  const bool has_end = text.find('-') != std::string_view::npos && text.back() != '-';
  if (!has_end) return true;
  if (out->first == out->last) return false;
  --out->last;
  return true;
}

template <class Word>
bool read_word(std::string_view text, Word* out) {
  const auto found = find_word<Word>(text);
  if (found) *out = *found;
  return found.has_value();
}

bool read_time(std::string_view text, Row* row, double* out) {
  row->is_predicted = text != "-";
  *out = 0;
  return text == "-" || (detail::parse_real(text, out) && *out >= 0 && *out <= 1e12);
}

std::string text_of(const Range& range, std::string (*number)(uint64_t)) {
  if (range == Range()) return "*";
  if (range.first == range.last) return number(range.first);
  return number(range.first) + "-" + (range.last == UINT64_MAX ? "" : number(range.last));
}
std::string count_text(uint64_t value) { return std::to_string(value); }
std::string counts_text(const Range& range) { return text_of(range, count_text); }
std::string size_text(uint64_t value) { return detail::bytes_text(value, "bytes"); }
std::string sizes_text(const Range& range) {
  const bool has_end = range.last != UINT64_MAX && range.first != range.last;
  return text_of({range.first, has_end ? range.last + 1 : range.last}, size_text);
}
std::string version_text(uint64_t version, uint64_t otherwise) {
  const std::string text = count_text(version / 10000) + "." + count_text(version / 100 % 100);
  return version % 100 == otherwise ? text : text + "." + count_text(version % 100);
}
std::string versions_text(const Range& range) {
  constexpr uint64_t kFirst = 0, kLast = 99, kNone = 100;
  if (range == Range()) return "*";
  if (range.first == range.last) return version_text(range.first, kNone);
  const std::string first = version_text(range.first, kFirst);
  if (range.last == UINT64_MAX) return first + "-";
  const std::string last = version_text(range.last, kLast);
  return first == last ? first : first + "-" + last;
}
std::string link_text(const Link& link) {
  if (link.kind == LinkKind::any) return "*";
  const std::string kind = link.kind == LinkKind::infiniband ? "ib" : "eth";
  return kind + (link.gbit != 0 ? count_text(link.gbit) : "");
}
std::string time_text(const Row& row, double us) {
  return row.is_predicted ? detail::number_text(us) : "-";
}

// ---- the columns --------------------------------------------------------------------------------

struct Column {
  const char* name;
  bool (*read)(std::string_view text, Row* row);
  std::string (*write)(const Row& row);
  const char* expected;
};

using View = std::string_view;
constexpr const char* kCounts = "a number, a range as 2-4 or 2-, or *";

const Column kColumns[]{
    {"collective", [](View text, Row* row) { return read_word(text, &row->collective); },
     [](const Row& row) { return std::string(name_of(row.collective)); },
     "broadcast, reduce, all_gather, reduce_scatter or all_reduce"},
    {"bytes", [](View text, Row* row) { return read_sizes(text, &row->bytes); },
     [](const Row& row) { return sizes_text(row.bytes); },
     "a range as 4M-32M, from the first up to below the second, 4M- or *"},
    {"nodes", [](View text, Row* row) { return read_counts(text, &row->nodes); },
     [](const Row& row) { return counts_text(row.nodes); }, kCounts},
    {"ranks_per_node", [](View text, Row* row) { return read_counts(text, &row->ranks_per_node); },
     [](const Row& row) { return counts_text(row.ranks_per_node); }, kCounts},
    {"nics", [](View text, Row* row) { return read_counts(text, &row->nics); },
     [](const Row& row) { return counts_text(row.nics); }, kCounts},
    {"link", [](View text, Row* row) { return parse_link(text, &row->link); },
     [](const Row& row) { return link_text(row.link); }, "ib400, eth100, ib, eth or *"},
    {"gpu",
     [](View text, Row* row) {
       row->gpu = find_word<Gpu>(text);
       return row->gpu.has_value() || text == "*";
     },
     [](const Row& row) { return row.gpu ? std::string(name_of(*row.gpu)) : "*"; },
     "volta, ampere, hopper, blackwell or *"},
    {"nccl",
     [](View text, Row* row) {
       return read_range(text, read_first_version, read_last_version, &row->nccl);
     },
     [](const Row& row) { return versions_text(row.nccl); },
     "a version as 2.30 or 2.30.7, a range as 2.22-2.30, or *"},
    {"algorithm",
     [](View text, Row* row) {
       return read_word(text, &row->algorithm) && is_possible(row->collective, row->algorithm);
     },
     [](const Row& row) { return std::string(name_of(row.algorithm)); },
     "Tree, Ring, CollNetDirect, CollNetChain, NVLS, NVLSTree or PAT, of those that NCCL has for "
     "the "
     "collective"},
    {"protocol",
     [](View text, Row* row) {
       return read_word(text, &row->protocol) && is_possible(row->algorithm, row->protocol);
     },
     [](const Row& row) { return std::string(name_of(row.protocol)); },
     "LL, LL128 or Simple; of others than Tree and Ring Simple alone"},
    {"channels",
     [](View text, Row* row) {
       uint64_t value = 0;
       if (!read_count(text, &value) || value > 64) return false;
       row->channels = static_cast<uint8_t>(value);
       return true;
     },
     [](const Row& row) { return count_text(row.channels); }, "0 to 64, where 0 leaves it to NCCL"},
    {"chunk",
     [](View text, Row* row) {
       uint64_t value = 0;
       const uint32_t grain = grain_of(row->protocol);
       if (!detail::parse_uint(text, &value) || value > 4_MiB || value % grain != 0) return false;
       row->chunk_bytes = static_cast<uint32_t>(value);
       return true;
     },
     [](const Row& row) { return size_text(row.chunk_bytes); },
     "0, which leaves it to NCCL, or up to 4M in multiples of the protocol's grain: 16 for LL, "
     "1920 "
     "for LL128, 512 for Simple"},
    {"fixed_us", [](View text, Row* row) { return read_time(text, row, &row->fixed_us); },
     [](const Row& row) { return time_text(row, row.fixed_us); },
     "microseconds of an empty message, or -"},
    {"us_per_mib",
     [](View text, Row* row) {
       const bool was_predicted = row->is_predicted;
       return read_time(text, row, &row->us_per_mib) && row->is_predicted == was_predicted;
     },
     [](const Row& row) { return time_text(row, row.us_per_mib); },
     "microseconds for each MiB, or - together with fixed_us"},
    // Last, for it may hold commas.
    {"provenance",
     [](View text, Row* row) {
       row->provenance = text;
       row->is_modelled = says_modelled(text);
       return !text.empty();
     },
     [](const Row& row) { return row.provenance; },
     "which measurement, where and when, or modelled"},
};

// ---- lines --------------------------------------------------------------------------------------

// Cuts a line at commas and knows where it stands.
class Fields {
 public:
  explicit Fields(View line) : line_(line) {}

  bool is_at_end() const { return next_ > line_.size(); }
  View take(bool is_last = false) {
    const size_t begin = std::min(next_, line_.size());
    const size_t comma = is_last ? View::npos : line_.find(',', begin);
    const size_t end = std::min(comma, line_.size());
    next_ = end + 1;
    const View field = line_.substr(begin, end - begin);
    const size_t blanks = field.find_first_not_of(' ');
    column_ = begin + (blanks == View::npos ? 0 : blanks) + 1;
    return detail::trimmed(field);
  }
  size_t column() const { return column_; }

 private:
  View line_;
  size_t next_ = 0;
  size_t column_ = 1;
};

// An array of NCCL's constants, which lie one after the other.
struct ConstantArray {
  View name;
  std::array<uint32_t, 3> extents;  // unused ones are 1
};
constexpr uint32_t kAlgorithmCount = abi::kTunerAlgorithms, kProtocolCount = abi::kTunerProtocols;
constexpr ConstantArray kConstants[]{{"baseLatencies", {kAlgorithmCount, kProtocolCount, 1}},
                                     {"hwLatencies", {3, kAlgorithmCount, kProtocolCount}},
                                     {"llMaxBws", {4, 3, 1}},
                                     {"perChMaxRingLL128Bws", {4, 3, 1}},
                                     {"perChMaxTreeLL128Bws", {4, 3, 1}},
                                     {"perChMaxTreeBws", {4, 3, 1}},
                                     {"perChMaxNVLSTreeBws", {4, 3, 1}}};

class Parser {
 public:
  Parser(View text, const std::string& file) : rest_(text), file_(file) {}

  Result<Table, std::string> parse() {
    while (!rest_.empty() && failure_.empty()) {
      View line = rest_.substr(0, rest_.find('\n'));
      rest_.remove_prefix(std::min(line.size() + 1, rest_.size()));
      ++line_number_;
      if (line.ends_with('\r')) line.remove_suffix(1);
      take_line(line);
    }
    line_number_ = std::max(line_number_, 1U);  // of an empty file
    if (failure_.empty() && !has_head_) refuse(1, "", "noria_table,1 as the first line");
    if (!failure_.empty()) return std::move(failure_);
    for (Row& row : table_.rows) row.max_regret = table_.max_regret;
    return std::move(table_);
  }

 private:
  void refuse(size_t column, View found, const std::string& expected) {
    if (!failure_.empty()) return;
    // Past what an editor shows at once nobody looks for the end of it.
    const std::string shown = printable(std::string(found.substr(0, 60)));
    failure_ = file_ + ":" + std::to_string(line_number_) + ":" + std::to_string(column) + ": '" +
               shown + "' stands where " + expected + " was expected";
  }

  void take_line(View line) {
    const View content = detail::trimmed(line);
    if (content.empty() || content.starts_with('#')) return;
    for (size_t i = 0; i < line.size(); ++i)
      if (static_cast<unsigned char>(line[i]) < ' ') return refuse(i + 1, line, "printable text");
    Fields fields(line);
    const View first = fields.take();
    if (!has_head_) return take_head(first, fields);
    if (first == kRegret) return take_regret(fields);
    if (first == kConstant) return take_constant(fields);
    take_row(Fields(line));
  }

  void take_head(View first, Fields fields) {
    const size_t column = fields.column();
    if (first != kHead || fields.take() != kVersion || !fields.is_at_end())
      return refuse(column, first, "noria_table,1 as the first line");
    has_head_ = true;
  }

  void take_regret(Fields fields) {
    const View text = fields.take();
    if (!detail::parse_real(text, &table_.max_regret) || !(table_.max_regret >= 0) ||
        table_.max_regret > 1)
      return refuse(fields.column(), text, "a part of 1, as 0.05");
    expect_end(fields);
  }

  void take_constant(Fields fields) {
    const View name = fields.take();
    uint32_t place = 0;
    for (const ConstantArray& array : kConstants) {
      if (array.name == name) return take_constant_of(array, place, fields);
      place += array.extents[0] * array.extents[1] * array.extents[2];
    }
    refuse(fields.column(), name, "an array of NCCL's constants, as llMaxBws");
  }

  void take_constant_of(const ConstantArray& array, uint32_t first, Fields fields) {
    uint32_t place = 0;
    for (const uint32_t extent : array.extents) {
      if (extent == 1) continue;
      uint64_t index = 0;
      const View text = fields.take();
      if (!read_count(text, &index) || index >= extent)
        return refuse(fields.column(), text, "an index below " + std::to_string(extent));
      place = place * extent + static_cast<uint32_t>(index);
    }
    Constant constant{.place = first + place};
    const View text = fields.take();
    if (!detail::parse_real(text, &constant.value) || !(constant.value >= 0) ||
        constant.value > 1e12)
      return refuse(fields.column(), text, "a number from 0 on");
    table_.constants.push_back(constant);
    expect_end(fields);
  }

  void take_row(Fields fields) {
    Row row;
    row.line = line_number_;
    for (size_t i = 0; i < std::size(kColumns); ++i) {
      const Column& column = kColumns[i];
      const bool is_missing = fields.is_at_end();
      const View text = fields.take(i + 1 == std::size(kColumns));
      if (is_missing || !column.read(text, &row))
        return refuse(fields.column(), text,
                      std::string(column.name) + " (" + column.expected + ")");
    }
    table_.rows.push_back(std::move(row));
  }

  void expect_end(Fields fields) {
    if (fields.is_at_end()) return;
    const View text = fields.take();
    refuse(fields.column(), text, "the end of the line");
  }

  View rest_;
  const std::string& file_;
  uint32_t line_number_ = 0;
  bool has_head_ = false;
  Table table_;
  std::string failure_;
};

// The comment that names the columns.
std::string column_names() {
  std::string line;
  for (const Column& column : kColumns)
    line += (line.empty() ? "# " : ",") + std::string(column.name);
  return line;
}

}  // namespace

bool parse_link(std::string_view text, Link* out) {
  if (text == "*") return *out = Link(), true;
  out->kind = text.starts_with("ib") ? LinkKind::infiniband : LinkKind::ethernet;
  if (out->kind == LinkKind::ethernet && !text.starts_with("eth")) return false;
  text.remove_prefix(out->kind == LinkKind::infiniband ? 2 : 3);
  uint64_t gbit = 0;
  if (!text.empty() && (!read_count(text, &gbit) || gbit == 0 || gbit > 100'000)) return false;
  out->gbit = static_cast<uint32_t>(gbit);
  return true;
}

bool parse_nccl_version(std::string_view text, uint64_t* out) {
  return read_first_version(text, out);
}

Result<Table, std::string> parse_table(std::string_view text, const std::string& file) {
  return Parser(text, file).parse();
}

std::string text_of(const Row& row) {
  std::string line;
  for (const Column& column : kColumns) line += (line.empty() ? "" : ",") + column.write(row);
  return line;
}

std::string text_of(const Table& table, const std::vector<std::string>& comments) {
  std::string text(kHead);
  text += "," + std::string(kVersion) + "\n" + std::string(kRegret) + "," +
          detail::number_text(table.max_regret) + "\n";
  for (const std::string& comment : comments) text += "# " + comment + "\n";
  for (const Constant& constant : table.constants) {
    uint32_t place = constant.place;
    for (const ConstantArray& array : kConstants) {
      const uint32_t size = array.extents[0] * array.extents[1] * array.extents[2];
      if (place >= size) {
        place -= size;
        continue;
      }
      text += std::string(kConstant) + "," + std::string(array.name);
      uint32_t below = size;
      for (const uint32_t extent : array.extents) {
        if (extent == 1) continue;
        below /= extent;
        text += "," + std::to_string(place / below);
        place %= below;
      }
      text += "," + detail::number_text(constant.value) + "\n";
      break;
    }
  }
  text += column_names() + "\n";
  for (const Row& row : table.rows) text += text_of(row) + "\n";
  return text;
}

}  // namespace noria::plugin::tuner
