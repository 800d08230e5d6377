#include "perf/tune_curves.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/units.hpp"
#include "perf/exit_codes.hpp"
#include "perf/format_text.hpp"
#include "perf/log_fault.hpp"
#include "perf/stats.hpp"

namespace noria::perf {
namespace {

using plugin::tuner::Algorithm;
using plugin::tuner::Collective;
using plugin::tuner::Protocol;
namespace words = plugin::tuner;

// Tables of one cluster and one choice repeat each other far better; a setting that is another, or
// a cluster that is, shows above.
constexpr double kContradiction = 1.25;

std::string place_of(const NamedLog& named, const LoggedTable& table) {
  return named.file + ":" + std::to_string(table.line) + ": ";
}

// Whose folders are nobody's business who reads the table.
std::string name_in(const std::string& path) { return path.substr(path.rfind('/') + 1); }

struct Choice {
  std::optional<Algorithm> algorithm;
  std::optional<Protocol> protocol;
  Cells cells = kAllCells;  // of which NCCL chose, as in CurveKey
};

// The only algorithm and the only protocol of these cells, where there is one alone; neither where
// all are left, for then NCCL chose as it does by itself.
Choice choice_among(Collective collective, Cells left) {
  Choice choice;
  if (left == cells_left(collective, "", "")) return choice;
  for (size_t cell = 0; cell < words::kCells; ++cell) {
    if (!has_cell(left, cell)) continue;
    const Algorithm algorithm = words::algorithm_of(cell);
    const Protocol protocol = words::protocol_of(cell);
    if ((left & ~cells_of(algorithm, {})) == 0) choice.algorithm = algorithm;
    if ((left & ~cells_of({}, protocol)) == 0) choice.protocol = protocol;
  }
  const Cells all = cells_left(collective, "", "") & cells_of(choice.algorithm, choice.protocol);
  if (left != all) choice.cells = left;
  return choice;
}

// As NCCL's log has it: "NVLS_TREE", or its number before version 2.23.
template <class Word>
std::optional<Word> said(std::string text) {
  std::erase(text, '_');
  if (text.size() == 1 && text[0] >= '0' &&
      text[0] < static_cast<char>('0' + words::names_of<Word>().size()))
    return static_cast<Word>(text[0] - '0');
  return words::find_word<Word>(text);
}

// What NCCL said of the row counts before the variables, and these before the flags.
Choice choice_of(const LoggedTable& table, const LoggedRow& row, Collective collective,
                 const Assumed& assumed) {
  const auto algorithm = said<Algorithm>(row.algorithm);
  const auto protocol = said<Protocol>(row.protocol);
  const std::string nccl_algo = algorithm ? "" : table.algorithm;
  const std::string nccl_proto = protocol ? "" : table.protocol;
  Cells left = cells_left(collective, nccl_algo, nccl_proto) & cells_of(algorithm, protocol);
  // NCCL_ALGO may ask for what NCCL has not; then it was something else.
  if (left == 0) left = cells_left(collective, "", nccl_proto) & cells_of({}, protocol);
  if (left == 0) left = cells_left(collective, "", "");
  for (const Cells flagged : {cells_of(assumed.algorithm, {}), cells_of({}, assumed.protocol)})
    if ((left & flagged) != 0) left &= flagged;
  return choice_among(collective, left);
}

// 0 for what is no time.
double time_of(const LoggedHalf& half) {
  const double us = half.is_there() ? std::strtod(half.time_us.c_str(), nullptr) : 0;
  return us > 0 && us < 1e15 ? us : 0;
}

// Longer than any memory: digits of something else were glued to the number.
constexpr uint64_t kMostBytes = uint64_t{1} << 60;

std::string text_of_nodes(const CurveKey& key) {
  return ", " + std::to_string(key.nodes) + (key.nodes == 1 ? " node of " : " nodes of ") +
         std::to_string(key.ranks_per_node);
}

class Reader {
 public:
  explicit Reader(const Assumed& assumed) : assumed_(assumed) {}

  void take(const NamedLog& named) {
    if (named.log.tables.empty())
      throw usage_error(named.file + ":1: has no row of nccl-tests from here to its end");
    for (size_t i = 0; i < named.log.tables.size(); ++i)
      take(named, named.log.tables[i], name_in(named.file) + " table " + std::to_string(i + 1));
  }

  Measured finish() {
    for (auto& [key, curve] : curves_) measured_.curves.push_back(std::move(curve));
    return std::move(measured_);
  }

 private:
  void take(const NamedLog& named, const LoggedTable& table, const std::string& source) {
    if (const std::string fault = fault_of(table, named.log); !fault.empty())
      throw usage_error(place_of(named, table) + "a table is not to be trusted: " + fault);
    const auto collective = table.collective.empty()
                                ? assumed_.collective
                                : words::find_word<Collective>(table.collective);
    if (!collective) {
      measured_.left_out.push_back(name_in(named.file) + ":" + std::to_string(table.line) + ": " +
                                   (table.collective.empty()
                                        ? "the log does not name its program; give --coll"
                                        : "the tuner is not asked about " + table.collective));
      return;
    }
    require_one_gpu(named, table);
    const CurveKey communicator = communicator_of(named, table, *collective);
    std::map<CurveKey, Curve> found;
    for (const LoggedRow& row : table.rows) {
      CurveKey key = communicator;
      const Choice choice = choice_of(table, row, *collective, assumed_);
      key.algorithm = choice.algorithm;
      key.protocol = choice.protocol;
      key.cells = choice.cells;
      Curve& curve = found[key];
      for (const LoggedHalf* half : {&row.out_of_place, &row.in_place})
        if (const double us = time_of(*half); us > 0 && row.bytes > 0 && row.bytes <= kMostBytes)
          curve.times.push_back({row.bytes, us});
    }
    for (auto& [key, curve] : found) {
      if (curve.times.empty()) continue;
      curve.key = key;
      curve.gpu = table.gpu;
      curve.nccl_version = table.nccl_version;
      add(named, table, source, std::move(curve));
    }
  }

  void require_one_gpu(const NamedLog& named, const LoggedTable& table) {
    if (table.gpu.empty()) return;
    if (!gpu_.empty() && gpu_ != table.gpu)
      throw usage_error(place_of(named, table) + "is of " + table.gpu +
                        ", and what was read before "
                        "of " +
                        gpu_ + ": a table is of one cluster, fit each alone");
    gpu_ = table.gpu;
  }

  CurveKey communicator_of(const NamedLog& named, const LoggedTable& table,
                           Collective collective) const {
    CurveKey key{.collective = collective};
    key.nodes = table.nodes != 0 ? table.nodes : assumed_.nodes;
    const bool has_ranks = table.ranks != 0 || assumed_.ranks_per_node != 0;
    if (key.nodes == 0)
      throw usage_error(place_of(named, table) + "the log does not say how many nodes " +
                        (has_ranks ? "there were; give --nodes"
                                   : "and ranks there were; give --nodes and --ranks-per-node"));
    if (table.ranks != 0 && table.ranks % key.nodes != 0)
      throw usage_error(place_of(named, table) + std::to_string(table.ranks) + " ranks on " +
                        std::to_string(key.nodes) + " nodes: not as many on each");
    key.ranks_per_node = table.ranks != 0 ? table.ranks / key.nodes : assumed_.ranks_per_node;
    if (key.ranks_per_node == 0)
      throw usage_error(place_of(named, table) +
                        "the log does not say how many ranks there were; give --ranks-per-node");
    return key;
  }

  void add(const NamedLog& named, const LoggedTable& table, const std::string& source,
           Curve curve) {
    auto [at, is_new] = curves_.try_emplace(curve.key, Curve());
    Curve& all = at->second;
    if (!is_new) require_agreement(named, table, all, curve);
    all.key = curve.key;
    all.times.insert(all.times.end(), curve.times.begin(), curve.times.end());
    all.sources.push_back(source);
    if (!curve.gpu.empty()) all.gpu = curve.gpu;
    if (!curve.nccl_version.empty()) all.nccl_version = curve.nccl_version;
  }

  static void require_agreement(const NamedLog& named, const LoggedTable& table,
                                const Curve& before, const Curve& now) {
    std::map<uint64_t, double> known;
    for (const TimedSize& mean : means_of(before.times)) known[mean.bytes] = mean.us;
    std::vector<double> ratios;
    for (const TimedSize& mean : means_of(now.times))
      if (known.contains(mean.bytes)) ratios.push_back(mean.us / known[mean.bytes]);
    const double ratio = median(ratios);
    if (ratios.empty() || (ratio < kContradiction && ratio > 1 / kContradiction)) return;
    throw usage_error(place_of(named, table) + text_of(now.key) + " takes " +
                      format_text("%.2f", ratio) + " times as long here as in " +
                      before.sources.back() +
                      ": other clusters, or other settings? fit each alone");
  }

  const Assumed& assumed_;
  Measured measured_;
  std::map<CurveKey, Curve> curves_;
  std::string gpu_;
};

FittedCurve fit(const Curve& curve) {
  FittedCurve fitted{.curve = curve, .pieces = fit_pieces(curve.times)};
  const std::vector<TimedSize> means = means_of(curve.times);
  if (means.size() == 1) {
    const double factor = means[0].us / curve.shape->us(means[0].bytes);
    fitted.pieces = {{0, {curve.shape->fixed_us * factor, curve.shape->us_per_byte * factor}}};
  }
  const std::vector<double> residuals = errors_of(fitted.pieces, curve.times);
  fitted.residual = median(residuals);
  const auto worst = std::max_element(residuals.begin(), residuals.end()) - residuals.begin();
  fitted.worst = residuals[static_cast<size_t>(worst)];
  fitted.worst_bytes = means[static_cast<size_t>(worst)].bytes;
  if (const std::vector<double> errors = left_out_errors(curve.times); !errors.empty())
    fitted.left_out = median(errors);
  return fitted;
}

}  // namespace

CurveKey communicator_of(CurveKey key) {
  key.algorithm.reset();
  key.protocol.reset();
  key.cells = kAllCells;
  return key;
}

Measured read_curves(const std::vector<NamedLog>& logs, const Assumed& assumed) {
  Reader reader(assumed);
  for (const NamedLog& log : logs) reader.take(log);
  return reader.finish();
}

uint64_t edge_at(double real) {
  const auto bytes = static_cast<uint64_t>(std::clamp(real, 0.0, 0x1p62));
  if (bytes < 32) return bytes;
  const int shift = 64 - 5 - __builtin_clzll(bytes);
  const uint64_t half = uint64_t{1} << shift >> 1;
  return (bytes + half) >> shift << shift;
}

std::vector<words::Range> held_by(const std::vector<TimedSize>& times) {
  constexpr uint64_t kFromNothing = 4_KiB, kToTheEnd = 256_MiB;
  std::vector<words::Range> held;
  uint64_t before = 0;
  for (const TimedSize& mean : means_of(times)) {
    const auto bytes = static_cast<double>(mean.bytes);
    const words::Range around{std::min(edge_at(bytes / kHalfAnOctave), mean.bytes),
                              std::max(edge_at(bytes * kHalfAnOctave) - 1, mean.bytes)};
    if (held.empty() || mean.bytes / kWidestGap > before)
      held.push_back(around);
    else
      held.back().last = around.last;
    before = mean.bytes;
    if (held.size() == 1 && held[0].first <= kFromNothing) held[0].first = 0;
  }
  if (before >= kToTheEnd) held.back().last = UINT64_MAX;
  return held;
}

bool holds(const std::vector<words::Range>& held, uint64_t bytes) {
  return std::any_of(held.begin(), held.end(),
                     [bytes](const words::Range& range) { return range.has(bytes); });
}

std::vector<FittedCurve> fit_curves(Measured* measured) {
  std::vector<FittedCurve> all;
  for (const Curve& curve : measured->curves) {
    if (means_of(curve.times).size() < 2 && !curve.shape)
      measured->left_out.push_back(curve.sources.front() + ": " + text_of(curve.key) +
                                   " was measured at one size, and a line takes two");
    else
      all.push_back(fit(curve));
  }
  return all;
}

std::optional<words::Gpu> gpu_of(const std::string& name) {
  using words::Gpu;
  struct Mark {
    const char* text;
    Gpu gpu;
  };
  constexpr Mark kMarks[]{
      {"V100", Gpu::volta},  {"A100", Gpu::ampere},    {"A800", Gpu::ampere},
      {"H100", Gpu::hopper}, {"H200", Gpu::hopper},    {"H800", Gpu::hopper},
      {"H20", Gpu::hopper},  {"B200", Gpu::blackwell}, {"B300", Gpu::blackwell}};
  for (const Mark& mark : kMarks)
    if (name.find(mark.text) != std::string::npos) return mark.gpu;
  return std::nullopt;
}

std::string text_of(const CurveKey& key) {
  std::string text(words::name_of(key.collective));
  text += " " + (key.algorithm ? std::string(words::name_of(*key.algorithm)) : "by NCCL's choice");
  if (key.algorithm || key.protocol)
    text += "/" + (key.protocol ? std::string(words::name_of(*key.protocol)) : "any protocol");
  if (key.cells != kAllCells) text += " of some";
  return text + text_of_nodes(key);
}

std::string text_of_communicator(const CurveKey& key) {
  return std::string(words::name_of(key.collective)) + text_of_nodes(key);
}

double steps_of(const CurveKey& key) {
  const auto ranks = static_cast<double>(key.ranks());
  const auto in_node = static_cast<double>(key.ranks_per_node);
  const double levels = std::ceil(std::log2(static_cast<double>(std::max<uint64_t>(key.nodes, 1))));
  const double rounds = key.collective == Collective::all_reduce ? 2 : 1;
  switch (key.algorithm.value_or(Algorithm::ring)) {
    case Algorithm::ring: return rounds * std::max(ranks - 1, 1.0);
    case Algorithm::tree: return std::max(rounds * (in_node - 1 + levels), 1.0);
    case Algorithm::pat: return std::max(std::ceil(std::log2(ranks)), 1.0);
    case Algorithm::nvls_tree: return 2 + rounds * levels;
    case Algorithm::collnet_direct:
    case Algorithm::collnet_chain:
    case Algorithm::nvls: return key.nodes > 1 ? 4 : 2;
  }
  return 1;
}

double bus_factor(const CurveKey& key) {
  const auto ranks = static_cast<double>(key.ranks());
  switch (key.collective) {
    case Collective::all_reduce: return 2 * (ranks - 1) / ranks;
    case Collective::all_gather:
    case Collective::reduce_scatter: return (ranks - 1) / ranks;
    case Collective::broadcast:
    case Collective::reduce: return 1;
  }
  return 1;
}

double bus_gbs(const CurveKey& key, uint64_t bytes, double us) {
  return bus_factor(key) * static_cast<double>(bytes) / us / 1000;
}

}  // namespace noria::perf
