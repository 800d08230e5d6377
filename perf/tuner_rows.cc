#include "perf/tuner_rows.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/units.hpp"
#include "base/value_text.hpp"
#include "perf/format_text.hpp"

namespace noria::perf {
namespace {

using plugin::tuner::Collective;
using plugin::tuner::Range;
using plugin::tuner::Row;

constexpr uint64_t kFromNothing = 4_KiB;  // latency alone, below as well
constexpr uint64_t kToTheEnd = 256_MiB;   // bandwidth alone, above as well
constexpr double kMiB = 1024.0 * 1024.0;
constexpr double kHalfAnOctave = 1.41421356237309505;

// Five significant bits, within 3 %: an edge is not known better, and reads as 20M.
uint64_t rounded(uint64_t bytes) {
  if (bytes < 32) return bytes;
  const int shift = 64 - 5 - __builtin_clzll(bytes);
  const uint64_t half = uint64_t{1} << shift >> 1;
  return bytes > UINT64_MAX - half ? bytes : (bytes + half) >> shift << shift;
}

// Four significant digits: more were not measured.
double rounded(double value) {
  double read = 0;
  detail::parse_real(format_text("%.4g", value), &read);
  return read;
}

// A curve as it is where the rows hold: as measured, or stretched to another number of nodes.
struct Candidate {
  const FittedCurve* fitted = nullptr;
  double fixed_factor = 1, slope_factor = 1;
  Range measured;  // the least size and the greatest
  Range bytes;     // where it holds

  Line line(uint64_t at) const {
    const Line& line = line_at(fitted->pieces, at);
    return {line.fixed_us * fixed_factor, line.us_per_byte * slope_factor};
  }
};

bool is_guessed(const FittedCurve& fitted) {
  return fitted.curve.sources.front().starts_with("modelled");
}

Candidate candidate_of(const FittedCurve& fitted, uint64_t nodes) {
  Candidate candidate{.fitted = &fitted};
  CurveKey there = fitted.curve.key;
  there.nodes = nodes;
  candidate.fixed_factor = steps_of(there) / steps_of(fitted.curve.key);
  candidate.slope_factor = bus_factor(there) / bus_factor(fitted.curve.key);
  const std::vector<TimedSize> means = means_of(fitted.curve.times);
  const uint64_t least = means.front().bytes, most = means.back().bytes;
  candidate.measured = {least, most};
  candidate.bytes = {least <= kFromNothing ? 0 : least, most >= kToTheEnd ? UINT64_MAX : most};
  return candidate;
}

// ---- where sizes are cut ------------------------------------------------------------------------

constexpr uint64_t kOpen = UINT64_MAX;

void add_edges_of(const Candidate& candidate, std::set<uint64_t>* edges) {
  edges->insert(candidate.bytes.first);
  if (candidate.bytes.last != UINT64_MAX) edges->insert(candidate.bytes.last + 1);
  for (const LinePiece& piece : candidate.fitted->pieces)
    if (const uint64_t edge = rounded(piece.first_byte); candidate.bytes.has(edge))
      edges->insert(edge);
}

// Of a cut: an edge is rounded, so at the edge itself the line may still be the one before.
uint64_t middle_of(uint64_t first, uint64_t end) {
  if (end == kOpen) return std::max<uint64_t>(first, kToTheEnd) * 4;
  return first + (end - first) / 2;
}

// Inside [first, end) every line is straight.
void add_crossings(const std::vector<Candidate>& candidates, uint64_t first, uint64_t end,
                   std::set<uint64_t>* edges) {
  const uint64_t middle = middle_of(first, end);
  for (size_t i = 0; i < candidates.size(); ++i) {
    for (size_t j = 0; j < i; ++j) {
      if (!candidates[i].bytes.has(first) || !candidates[j].bytes.has(first)) continue;
      const Line a = candidates[i].line(middle), b = candidates[j].line(middle);
      const double at = (b.fixed_us - a.fixed_us) / (a.us_per_byte - b.us_per_byte);
      if (!std::isfinite(at) || at <= static_cast<double>(first) || at >= 0x1p62) continue;
      const uint64_t edge = rounded(static_cast<uint64_t>(at));
      if (edge > first && edge < end) edges->insert(edge);
    }
  }
}

// ---- rows ---------------------------------------------------------------------------------------

std::string sources_of(const Curve& curve) {
  std::string text = curve.sources.front();
  if (curve.sources.size() > 1)
    text += " and " + std::to_string(curve.sources.size() - 1) + " more";
  return text;
}

// Where NCCL is thought to have changed its choice, the one before does not go on: each ends in the
// middle between the sizes, and nothing is without a row that was measured between two.
void end_guesses(std::vector<Candidate>* candidates) {
  std::vector<Candidate*> guesses;
  for (Candidate& candidate : *candidates)
    if (is_guessed(*candidate.fitted)) guesses.push_back(&candidate);
  std::sort(guesses.begin(), guesses.end(), [](const Candidate* a, const Candidate* b) {
    return a->measured.first < b->measured.first;
  });
  for (size_t i = 0; i + 1 < guesses.size(); ++i) {
    Candidate &before = *guesses[i], &after = *guesses[i + 1];
    if (before.measured.last >= after.measured.first) continue;  // of another kind of sweep
    const double middle = std::sqrt(static_cast<double>(before.measured.last) *
                                    static_cast<double>(after.measured.first));
    const uint64_t edge = std::clamp(rounded(static_cast<uint64_t>(middle)),
                                     before.measured.last + 1, after.measured.first);
    before.bytes.last = edge - 1;
    after.bytes.first = edge;
  }
}

class Builder {
 public:
  explicit Builder(const RowsFor& what) : what_(what) {}

  // Rows of one communicator, or of a range of nodes that are modelled at `nodes`.
  void add(std::vector<Candidate> candidates, uint64_t nodes, Range range) {
    end_guesses(&candidates);
    std::set<uint64_t> edges;
    for (const Candidate& candidate : candidates) add_edges_of(candidate, &edges);
    const std::vector<uint64_t> straight(edges.begin(), edges.end());
    for (size_t i = 0; i < straight.size(); ++i)
      add_crossings(candidates, straight[i], i + 1 < straight.size() ? straight[i + 1] : kOpen,
                    &edges);
    std::vector<uint64_t> all(edges.begin(), edges.end());
    all.push_back(kOpen);
    for (size_t i = 0; i + 1 < all.size(); ++i)
      add_cut(candidates, nodes, range, all[i], all[i + 1]);
  }

  std::vector<Row> finish() { return std::move(rows_); }

 private:
  void add_cut(const std::vector<Candidate>& candidates, uint64_t nodes, Range range,
               uint64_t first, uint64_t end) {
    const uint64_t middle = middle_of(first, end);
    std::vector<const Candidate*> here;
    for (const Candidate& candidate : candidates)
      if (candidate.bytes.has(first)) here.push_back(&candidate);
    std::stable_sort(here.begin(), here.end(), [&](const Candidate* a, const Candidate* b) {
      return a->line(middle).us(middle) < b->line(middle).us(middle);
    });
    for (const Candidate* candidate : here)
      rows_.push_back(row_of(*candidate, candidate->line(middle), nodes, range,
                             {first, end == kOpen ? kOpen : end - 1}));
  }

  Row row_of(const Candidate& candidate, const Line& line, uint64_t nodes, Range range,
             Range bytes) const {
    const Curve& curve = candidate.fitted->curve;
    Row row{.collective = curve.key.collective, .bytes = bytes, .nodes = range};
    row.ranks_per_node = {curve.key.ranks_per_node, curve.key.ranks_per_node};
    row.nics = what_.nics;
    row.link = what_.link;
    row.gpu = what_.gpu;
    row.nccl = what_.nccl;
    row.algorithm = *curve.key.algorithm;
    row.protocol = *curve.key.protocol;
    row.is_predicted = true;
    row.fixed_us = rounded(line.fixed_us);
    row.us_per_mib = rounded(line.us_per_byte * kMiB);
    row.provenance = sources_of(curve);
    if (nodes != curve.key.nodes)
      row.provenance = "modelled at " + std::to_string(nodes) + " nodes from " +
                       std::to_string(curve.key.nodes) + " of " + row.provenance;
    row.is_modelled = row.provenance.starts_with("modelled");
    if (!what_.provenance.empty()) row.provenance += "; " + what_.provenance;
    return row;
  }

  const RowsFor& what_;
  std::vector<Row> rows_;
};

// What choices of one collective and node there are, by the number of nodes.
using Choices =
    std::map<std::pair<Collective, uint64_t>, std::map<uint64_t, std::vector<const FittedCurve*>>>;

double octaves_between(uint64_t a, uint64_t b) {
  return std::abs(std::log2(static_cast<double>(a) / static_cast<double>(b)));
}

// Of each choice the curve of the nearest number of nodes; those of one node know no network.
std::vector<Candidate> nearest_to(uint64_t nodes,
                                  const std::map<uint64_t, std::vector<const FittedCurve*>>& all) {
  std::map<std::pair<plugin::tuner::Algorithm, plugin::tuner::Protocol>, const FittedCurve*> best;
  for (const auto& [measured, curves] : all) {
    if (measured < 2) continue;
    for (const FittedCurve* curve : curves) {
      const CurveKey& key = curve->curve.key;
      const FittedCurve*& nearest = best[{*key.algorithm, *key.protocol}];
      if (nearest == nullptr ||
          octaves_between(measured, nodes) < octaves_between(nearest->curve.key.nodes, nodes))
        nearest = curve;
    }
  }
  std::vector<Candidate> candidates;
  for (const auto& [choice, curve] : best) candidates.push_back(candidate_of(*curve, nodes));
  return candidates;
}

// The range without the numbers that were measured.
std::vector<Range> without(Range range,
                           const std::map<uint64_t, std::vector<const FittedCurve*>>& measured) {
  std::vector<Range> left;
  for (const auto& [nodes, curves] : measured) {
    if (!range.has(nodes)) continue;
    if (nodes > range.first) left.push_back({range.first, nodes - 1});
    range.first = nodes + 1;
  }
  if (range.first <= range.last) left.push_back(range);
  return left;
}

}  // namespace

std::vector<Row> rows_of(const std::vector<FittedCurve>& curves, const RowsFor& what) {
  Choices choices;
  for (const FittedCurve& fitted : curves) {
    const CurveKey& key = fitted.curve.key;
    if (key.algorithm && key.protocol)
      choices[{key.collective, key.ranks_per_node}][key.nodes].push_back(&fitted);
  }
  Builder builder(what);
  for (const auto& [where, by_nodes] : choices) {
    for (const auto& [nodes, measured] : by_nodes) {
      std::vector<Candidate> candidates;
      for (const FittedCurve* fitted : measured) candidates.push_back(candidate_of(*fitted, nodes));
      builder.add(candidates, nodes, {nodes, nodes});
    }
    for (uint64_t nodes = 2; nodes <= what.most_nodes; nodes *= 2) {
      const std::vector<Candidate> candidates = nearest_to(nodes, by_nodes);
      const auto middle = static_cast<double>(nodes);
      const Range octave{static_cast<uint64_t>(std::ceil(middle / kHalfAnOctave)),
                         static_cast<uint64_t>(middle * kHalfAnOctave)};
      if (candidates.empty()) continue;
      for (const Range& range : without(octave, by_nodes)) builder.add(candidates, nodes, range);
    }
  }
  return builder.finish();
}

std::string summary_of(const FittedCurve& fitted) {
  const CurveKey& key = fitted.curve.key;
  const std::vector<TimedSize> means = means_of(fitted.curve.times);
  const auto size = [](uint64_t bytes) { return detail::bytes_text(bytes, "bytes"); };
  std::string text = text_of(key) + ": " + std::to_string(means.size()) + " sizes from " +
                     size(means.front().bytes) + " to " + size(means.back().bytes) + ", " +
                     std::to_string(fitted.pieces.size()) +
                     (fitted.pieces.size() == 1 ? " line; " : " lines; ");
  if (key.algorithm)
    text += format_text("%.0f steps of %.3g us, ", steps_of(key),
                        fitted.pieces.front().line.fixed_us / steps_of(key));
  const double slope = fitted.pieces.back().line.us_per_byte;
  if (slope > 0) text += format_text("%.4g GB/s bus at best, ", bus_factor(key) / slope / 1000);
  text += format_text("median error %.1f %%, largest %.0f %% at ", 100 * fitted.residual,
                      100 * fitted.worst) +
          size(fitted.worst_bytes);
  if (fitted.left_out) text += format_text(", of sizes left out %.1f %%", 100 * *fitted.left_out);
  return text;
}

std::string table_text(const std::vector<FittedCurve>& curves, const std::vector<Row>& rows,
                       double max_regret) {
  std::string text = "noria_table,1\nmax_regret," + detail::number_text(max_regret) + "\n";
  text += "# Made by noria_tune fit. Of each curve: sizes, lines, steps, errors.\n";
  for (const FittedCurve& fitted : curves) text += "# " + printable(summary_of(fitted)) + "\n";
  text += plugin::tuner::column_names() + "\n";
  for (const Row& row : rows) text += plugin::tuner::text_of(row) + "\n";
  return text;
}

}  // namespace noria::perf
