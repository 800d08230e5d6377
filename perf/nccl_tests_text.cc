#include "perf/nccl_tests_text.hpp"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <map>
#include <regex>
#include <set>
#include <tuple>

namespace noria::perf {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_blank(char c) { return c == ' ' || c == '\t'; }

template <size_t kCount>
bool is_one_of(std::string_view word, const std::array<std::string_view, kCount>& words) {
  return std::find(words.begin(), words.end(), word) != words.end();
}

constexpr std::array<std::string_view, 15> kTypes{
    "int8",   "uint8",    "int32",    "uint32",   "int64",  "uint64", "half", "float",
    "double", "bfloat16", "fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2", "char"};
constexpr std::array<std::string_view, 7> kRedops{"sum", "prod",   "max", "min",
                                                  "avg", "mulsum", "none"};

// "[1,0]<stdout>:" wherever it stands.
std::string without_mpirun_tags(std::string_view line) {
  std::string kept;
  while (!line.empty()) {
    const size_t open = line.find('[');
    kept += line.substr(0, open);
    if (open == std::string_view::npos) break;
    line.remove_prefix(open);
    size_t at = 1;
    while (at < line.size() && (is_digit(line[at]) || line[at] == ',')) ++at;
    const std::string_view rest = line.substr(std::min(at, line.size()));
    size_t tag = 0;
    for (const std::string_view end : {"]<stdout>:", "]<stderr>:"})
      if (at > 1 && rest.starts_with(end)) tag = at + end.size();
    if (tag == 0) {
      kept += '[';
      tag = 1;
    }
    line.remove_prefix(tag);
  }
  return kept;
}

std::string_view without_blanks(std::string_view text) {
  while (!text.empty() && is_blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && (is_blank(text.back()) || text.back() == '\r')) text.remove_suffix(1);
  return text;
}

// srun's "12: ", and a word in brackets before a colon.
std::string_view without_label(std::string_view line) {
  line = without_blanks(line);
  size_t at = 0;
  while (at < line.size() && is_digit(line[at])) ++at;
  if (at > 0 && at < line.size() && line[at] == ':' &&
      (at + 1 == line.size() || is_blank(line[at + 1]) || line[at + 1] == '#'))
    return without_blanks(line.substr(at + 1));
  const size_t close = line.starts_with('[') ? line.find("]:") : std::string_view::npos;
  if (close < 16) return without_blanks(line.substr(close + 2));  // npos is above
  return line;
}

std::string_view take_word(std::string_view* line) {
  *line = without_blanks(*line);
  size_t at = 0;
  while (at < line->size() && !is_blank((*line)[at])) ++at;
  const std::string_view word = line->substr(0, at);
  line->remove_prefix(at);
  return word;
}

bool read_whole(std::string_view word, uint64_t* out) {
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), *out);
  return error == std::errc() && end == word.data() + word.size() && !word.empty();
}

// The number that a word begins with, as printed; something else may be glued behind it.
std::string_view number_at_front(std::string_view word) {
  size_t at = word.starts_with('-') ? 1 : 0;
  const size_t first = at;
  while (at < word.size() && (is_digit(word[at]) || word[at] == '.')) ++at;
  if (at == first) return word.starts_with("N/A") ? word.substr(0, 3) : "";
  if (at + 1 < word.size() && word[at] == 'e' && (word[at + 1] == '+' || word[at + 1] == '-') &&
      at + 2 < word.size() && is_digit(word[at + 2])) {
    at += 2;
    while (at < word.size() && is_digit(word[at])) ++at;
  }
  return word.substr(0, at);
}

// Numbers from here on, up to the first word that is none or has something glued behind it.
std::vector<std::string> take_numbers(std::string_view* line) {
  std::vector<std::string> numbers;
  while (true) {
    std::string_view rest = *line;
    const std::string_view word = take_word(&rest);
    const std::string_view number = number_at_front(word);
    if (number.empty()) return numbers;
    numbers.emplace_back(number);
    *line = rest;
    if (number.size() == word.size()) continue;
    *line = "";
    return numbers;
  }
}

constexpr size_t kHalf = 4;
void fill(LoggedHalf* half, const std::vector<std::string>& numbers, size_t from) {
  *half = {numbers[from], numbers[from + 1], numbers[from + 2], numbers[from + 3]};
}

struct Columns {
  bool has_redop = true;
  bool has_root = true;
  bool has_in_place = true;
};

// Column titles: nothing else has these words on one line.
bool is_titles(std::string_view line) {
  return line.find("size") != std::string_view::npos &&
         line.find("count") != std::string_view::npos &&
         line.find("algbw") != std::string_view::npos;
}
Columns columns_of(std::string_view titles) {
  const size_t first = titles.find("algbw");
  return {titles.find("redop") != std::string_view::npos,
          titles.find("root") != std::string_view::npos,
          titles.find("algbw", first + 1) != std::string_view::npos};
}

// Of NCCL_ALGO or NCCL_PROTO.
struct Setting {
  std::string value;
  bool is_for_one_run = false;  // else until it is set anew
};

// Facts of the lines around a table.
struct Facts {
  uint64_t ranks = 0;
  std::set<std::string> hosts;
  std::string gpu, nccl_version, collective;
  Setting algorithm, protocol;
};

class Parser {
 public:
  NcclTestsLog parse(std::string_view text) {
    while (!text.empty()) {
      const size_t end = text.find('\n');
      ++line_number_;
      take_line(text.substr(0, end));
      text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
    }
    name_chosen();
    for (LoggedTable& table : log_.tables)
      if (table.collective.empty()) table.collective = inferred_collective(table);
    std::erase_if(log_.tables, [](const LoggedTable& table) { return table.rows.empty(); });
    if (log_.is_interleaved) merge();
    return std::move(log_);
  }

 private:
  void take_line(std::string_view raw) {
    const std::string untagged = without_mpirun_tags(raw);
    const std::string_view line = without_label(untagged);
    if (is_titles(line)) return begin_table(line);
    if (take_row(line) || take_halves(line)) return;
    take_facts(untagged);
  }

  void begin_table(std::string_view titles) {
    // A second program's titles before a row of the first.
    columns_ = columns_of(titles);
    is_run_open_ = false;
    open_table();
  }
  void open_table() {
    if (!log_.tables.empty() && log_.tables.back().rows.empty()) log_.tables.pop_back();
    LoggedTable table{.ranks = facts_.ranks, .nodes = facts_.hosts.size(), .line = line_number_};
    table.collective = facts_.collective;
    table.gpu = facts_.gpu;
    table.nccl_version = facts_.nccl_version;
    table.algorithm = facts_.algorithm.value;
    table.protocol = facts_.protocol.value;
    log_.tables.push_back(std::move(table));
    pending_ = nullptr;
    is_table_open_ = true;
  }

  bool take_row(std::string_view line) {
    LoggedRow row{.line = line_number_};
    if (!read_whole(take_word(&line), &row.bytes) || !read_whole(take_word(&line), &row.count))
      return false;
    const std::string_view type = take_word(&line);
    if (!is_one_of(type, kTypes)) return false;
    row.type = type;
    std::string_view after = line;
    const std::string_view redop = take_word(&after);
    if (is_one_of(redop, kRedops)) {
      row.redop = redop;
      line = after;
    }
    std::vector<std::string> numbers = take_numbers(&line);
    // A root is the first of what does not go into halves, or stands alone before the cut; -1 is no
    // time.
    const bool is_negative = !numbers.empty() && numbers.front().starts_with('-');
    if (is_negative || (columns_.has_root && numbers.size() % kHalf == 1 &&
                        numbers.front().find('.') == std::string::npos)) {
      row.root = numbers.front();
      numbers.erase(numbers.begin());
    }
    if (numbers.size() % kHalf != 0) return false;
    if (!is_table_open_) open_table();
    if (numbers.size() >= kHalf) fill(&row.out_of_place, numbers, 0);
    if (numbers.size() >= 2 * kHalf) fill(&row.in_place, numbers, kHalf);
    std::vector<LoggedRow>& rows = log_.tables.back().rows;
    rows.push_back(std::move(row));
    const bool is_whole = numbers.size() == (columns_.has_in_place ? 2 : 1) * kHalf;
    pending_ = is_whole ? nullptr : &rows.back();
    return true;
  }

  // The rest of a row that other lines cut.
  bool take_halves(std::string_view line) {
    if (pending_ == nullptr || line.empty() || line.front() == '#') return false;
    const std::vector<std::string> numbers = take_numbers(&line);
    if (numbers.empty() || numbers.size() % kHalf != 0 || numbers.size() > 2 * kHalf) return false;
    for (size_t from = 0; from < numbers.size(); from += kHalf) {
      LoggedHalf& half =
          pending_->out_of_place.is_there() ? pending_->in_place : pending_->out_of_place;
      if (!half.is_there()) fill(&half, numbers, from);
    }
    if (pending_->in_place.is_there()) pending_ = nullptr;
    return true;
  }

  // Regular expressions of this library take stack by the character; lines of nccl-tests and of
  // NCCL's log are shorter by far.
  static constexpr size_t kLongestFact = 4000;
  void take_facts(const std::string& line) {
    static const std::regex kRank(
        R"(Rank +(\d+) .*Pid +\d+ on +(\S+) device +\d+ \[[^\]]*\] (.*\S))");
    static const std::regex kProgram(R"(\b(all_reduce|all_gather|reduce_scatter|broadcast|reduce|)"
                                     R"(alltoall|sendrecv|gather|scatter|hypercube)_perf)");
    static const std::regex kVersion(R"(NCCL version (\d+\.\d+\.\d+))");
    static const std::regex kLibrary(R"(nccl-library=(\d+))");
    static const std::regex kChosen(R"((?:(\w+): )?(\d+) Bytes -> Algo (\w+) proto (\w+))");
    if (line.size() > kLongestFact) return;
    std::smatch match;
    if (line.find("# nThread") != std::string::npos || line.find("nThread ") == 0) begin_run();
    if (line.find("Avg bus bandwidth") != std::string::npos) end_table();
    if (std::regex_search(line, match, kRank)) take_rank(match);
    if (line.find("_perf") != std::string::npos && std::regex_search(line, match, kProgram))
      take_program(match[1]);
    if (std::regex_search(line, match, kVersion)) facts_.nccl_version = match[1];
    if (std::regex_search(line, match, kLibrary)) facts_.nccl_version = version_of(match[1]);
    take_settings(line);
    if (line.find("Bytes -> Algo") != std::string::npos && std::regex_search(line, match, kChosen))
      take_chosen(match);
  }

  // What a heading says holds below it, to the next one, and what is exported to the shell's end;
  // a command's variables, and what NCCL says of them, are those of one run.
  void take_settings(const std::string& line) {
    static const std::regex kSetting(
        R"(\b(?:NCCL_)?(ALGO|PROTO)(?:=[\"']?| set by environment to )([\w^,:;]+))");
    const bool is_heading = line.starts_with("### ");
    if (is_heading) {
      is_table_open_ = false;  // headerless runs, one behind the other
      facts_.algorithm = facts_.protocol = {};
    }
    const bool is_for_one_run = !is_heading && line.find("export ") == std::string::npos;
    for (std::sregex_iterator found(line.begin(), line.end(), kSetting), end; found != end; ++found)
      ((*found)[1] == "ALGO" ? facts_.algorithm : facts_.protocol) = {(*found)[2], is_for_one_run};
  }
  void end_run() {
    for (Setting* setting : {&facts_.algorithm, &facts_.protocol})
      if (setting->is_for_one_run) *setting = {};
  }

  // Two programs that announce themselves before the first has titles print at once.
  void begin_run() {
    if (is_run_open_) log_.is_interleaved = true;
    is_run_open_ = true;
    is_table_open_ = false;
    pending_ = nullptr;
    name_chosen();
    chosen_.clear();
    facts_.ranks = 0;
    facts_.hosts.clear();
  }
  void end_table() {
    if (!log_.tables.empty()) {
      LoggedTable& last = log_.tables.back();
      last.has_two_ends = last.has_end;
      last.has_end = true;
    }
    is_table_open_ = false;
    pending_ = nullptr;
    end_run();
  }
  void take_rank(const std::smatch& match) {
    uint64_t rank = 0;
    if (!read_whole(match[1].str(), &rank)) return;
    facts_.ranks = std::max(facts_.ranks, rank + 1);
    facts_.hosts.insert(match[2]);
    facts_.gpu = match[3];
  }
  void take_program(const std::string& name) {
    facts_.collective = name;
    if (is_table_open_ && log_.tables.back().rows.empty()) log_.tables.back().collective = name;
  }
  // With the function's name NCCL counts the bytes of one rank; without it, as before 2.23, of all.
  void take_chosen(const std::smatch& match) {
    uint64_t bytes = 0;
    const std::string function = match[1];
    const bool is_gather = function == "AllGather" || function == "ReduceScatter";
    if (!function.empty() && !facts_.collective.empty() &&
        function != function_of(facts_.collective))
      return;
    if (read_whole(match[2].str(), &bytes))
      chosen_[bytes * (is_gather ? facts_.ranks : 1)] = {match[3], match[4]};
  }
  // As NCCL names it: "AllReduce" of all_reduce.
  static std::string function_of(const std::string& collective) {
    std::string name;
    bool is_first = true;
    for (const char c : collective) {
      if (c != '_') name += is_first ? static_cast<char>(std::toupper(c)) : c;
      is_first = c == '_';
    }
    return name;
  }
  // NCCL says so while a row is measured, or before the titles where it warms up: known at the end.
  void name_chosen() {
    if (log_.tables.empty()) return;
    for (LoggedRow& row : log_.tables.back().rows) {
      const auto at = chosen_.find(row.bytes);
      if (at == chosen_.end() || !row.algorithm.empty()) continue;
      std::tie(row.algorithm, row.protocol) = at->second;
    }
  }
  static std::string version_of(const std::string& code) {
    uint64_t number = 0;
    if (!read_whole(code, &number)) return "";
    return std::to_string(number / 10000) + "." + std::to_string(number / 100 % 100) + "." +
           std::to_string(number % 100);
  }

  // Of all collectives only an all-reduce of more than two ranks has more bus than algorithm
  // bandwidth.
  static std::string inferred_collective(const LoggedTable& table) {
    for (const LoggedRow& row : table.rows) {
      const double algbw = std::strtod(row.out_of_place.algbw.c_str(), nullptr);
      const double busbw = std::strtod(row.out_of_place.busbw.c_str(), nullptr);
      if (algbw > 1 && busbw > 1.2 * algbw) return "all_reduce";
    }
    return "";
  }

  void merge() {
    if (log_.tables.empty()) return;
    LoggedTable all = log_.tables.front();
    for (size_t i = 1; i < log_.tables.size(); ++i)
      all.rows.insert(all.rows.end(), log_.tables[i].rows.begin(), log_.tables[i].rows.end());
    log_.tables = {std::move(all)};
  }

  NcclTestsLog log_;
  Facts facts_;
  std::map<uint64_t, std::pair<std::string, std::string>> chosen_;  // by bytes, of this run
  Columns columns_;
  LoggedRow* pending_ = nullptr;  // whose halves have not all come
  bool is_run_open_ = false;      // announced, and no titles yet
  bool is_table_open_ = false;
  size_t line_number_ = 0;
};

}  // namespace

NcclTestsLog parse_nccl_tests(std::string_view text) { return Parser().parse(text); }

}  // namespace noria::perf
