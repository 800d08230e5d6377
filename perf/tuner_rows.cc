#include "perf/tuner_rows.hpp"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

#include "base/units.hpp"
#include "base/value_text.hpp"
#include "perf/format_text.hpp"
#include "perf/stats.hpp"

namespace noria::perf {
namespace {

using plugin::tuner::Collective;
using plugin::tuner::Range;
using plugin::tuner::Row;

constexpr double kMiB = 1024.0 * 1024.0;

// Four significant digits: more were not measured.
double rounded(double value) {
  double read = 0;
  detail::parse_real(format_text("%.4g", value), &read);
  return read;
}

// A curve, and sizes at which its lines hold.
struct Candidate {
  const FittedCurve* fitted = nullptr;
  Range measured;  // the least of these sizes and the greatest
  Range bytes;     // where it holds

  const Line& line(uint64_t at) const { return line_at(fitted->pieces, at); }
};

void add_candidates_of(const FittedCurve& fitted, std::vector<Candidate>* out) {
  const std::vector<TimedSize> means = means_of(fitted.curve.times);
  const Range most = fitted.curve.scaling ? fitted.curve.scaling->bytes : Range();
  for (const Range& held : held_by(means)) {
    Candidate made{&fitted,
                   {UINT64_MAX, 0},
                   {std::max(held.first, most.first), std::min(held.last, most.last)}};
    for (const TimedSize& mean : means)
      if (held.has(mean.bytes))
        made.measured = {std::min(made.measured.first, mean.bytes), mean.bytes};
    if (made.bytes.first <= made.bytes.last) out->push_back(made);
  }
}

// ---- where sizes are cut ------------------------------------------------------------------------

constexpr uint64_t kOpen = UINT64_MAX;

void add_edges_of(const Candidate& candidate, std::set<uint64_t>* edges) {
  edges->insert(candidate.bytes.first);
  if (candidate.bytes.last != UINT64_MAX) edges->insert(candidate.bytes.last + 1);
  for (const LinePiece& piece : candidate.fitted->pieces)
    if (const uint64_t edge = edge_at(static_cast<double>(piece.first_byte));
        candidate.bytes.has(edge))
      edges->insert(edge);
}

// Of a cut: an edge is rounded, so at the edge itself the line may still be the one before.
uint64_t middle_of(uint64_t first, uint64_t end) {
  if (end == kOpen) return std::max<uint64_t>(first, 256_MiB) * 4;
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
      const uint64_t edge = edge_at(at);
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

// Where the model changes its choice between two sizes; in the middle of the logarithm where that
// is not known.
double edge_of_guesses(const Candidate& before, const Candidate& after) {
  for (const uint64_t edge : before.fitted->curve.edges)
    if (before.measured.last < edge && edge <= after.measured.first)
      return static_cast<double>(edge);
  return std::sqrt(static_cast<double>(before.measured.last) *
                   static_cast<double>(after.measured.first));
}

// Where NCCL is thought to have changed its choice, the one before does not go on: each ends where
// the next begins, and nothing is without a row that was measured between two. Of one sweep, that
// is: of another the choices are others.
void end_guesses(std::vector<Candidate>* candidates) {
  std::map<std::pair<std::string, uint64_t>, std::vector<Candidate*>> sweeps;
  for (Candidate& candidate : *candidates) {
    const Curve& curve = candidate.fitted->curve;
    if (curve.is_guess)
      sweeps[{curve.sources.front(), curve.scaling ? curve.scaling->nodes : 0}].push_back(
          &candidate);
  }
  for (auto& [sweep, guesses] : sweeps) {
    std::sort(guesses.begin(), guesses.end(), [](const Candidate* a, const Candidate* b) {
      return a->measured.first < b->measured.first;
    });
    for (size_t i = 0; i + 1 < guesses.size(); ++i) {
      Candidate &before = *guesses[i], &after = *guesses[i + 1];
      if (before.measured.last >= after.measured.first) continue;  // they take turns
      if (after.measured.first / kWidestGap > before.measured.last) continue;
      const uint64_t edge = std::clamp(edge_at(edge_of_guesses(before, after)),
                                       before.measured.last + 1, after.measured.first);
      before.bytes.last = edge - 1;
      after.bytes.first = edge;
    }
  }
}

// "modelled at 16 nodes from 10 of a.log table 1", with ranks and NICs where these are others; the
// word that begins it is says_modelled's.
std::string provenance_of(const Curve& curve) {
  const std::string source = sources_of(curve);
  if (!curve.scaling) return curve.is_guess ? "modelled choice of NCCL's in " + source : source;
  const Scaling& from = *curve.scaling;
  const bool has_other_ranks = from.ranks_per_node != curve.key.ranks_per_node;
  const bool has_other_nics = from.nics != from.nics_there;
  const auto node = [&](uint64_t ranks, uint64_t nics) {
    return (has_other_ranks ? " of " + std::to_string(ranks) : "") +
           (has_other_nics ? " with " + std::to_string(nics) + " NICs" : "");
  };
  return std::string(curve.is_guess ? "modelled choice of NCCL's at " : "modelled at ") +
         std::to_string(curve.key.nodes) + " nodes" +
         node(curve.key.ranks_per_node, from.nics_there) + " from " + std::to_string(from.nodes) +
         node(from.ranks_per_node, from.nics) +
         (has_other_ranks || has_other_nics ? " in " : " of ") + source;
}

class Builder {
 public:
  explicit Builder(const RowsFor& what) : what_(what) {}

  // Rows of one communicator, or of a range of nodes.
  void add(std::vector<Candidate> candidates, Range nodes) {
    end_guesses(&candidates);
    std::set<uint64_t> edges;
    for (const Candidate& candidate : candidates) add_edges_of(candidate, &edges);
    const std::vector<uint64_t> straight(edges.begin(), edges.end());
    for (size_t i = 0; i < straight.size(); ++i)
      add_crossings(candidates, straight[i], i + 1 < straight.size() ? straight[i + 1] : kOpen,
                    &edges);
    std::vector<uint64_t> all(edges.begin(), edges.end());
    all.push_back(kOpen);
    for (size_t i = 0; i + 1 < all.size(); ++i) add_cut(candidates, nodes, all[i], all[i + 1]);
  }

  std::vector<Row> finish() { return std::move(rows_); }

 private:
  void add_cut(const std::vector<Candidate>& candidates, Range nodes, uint64_t first,
               uint64_t end) {
    const uint64_t middle = middle_of(first, end);
    std::vector<const Candidate*> here;
    for (const Candidate& candidate : candidates)
      if (candidate.bytes.has(first)) here.push_back(&candidate);
    std::stable_sort(here.begin(), here.end(), [&](const Candidate* a, const Candidate* b) {
      return a->line(middle).us(middle) < b->line(middle).us(middle);
    });
    for (const Candidate* candidate : here)
      rows_.push_back(row_of(candidate->fitted->curve, candidate->line(middle), nodes,
                             {first, end == kOpen ? kOpen : end - 1}));
  }

  Row row_of(const Curve& curve, const Line& line, Range nodes, Range bytes) const {
    Row row{.collective = curve.key.collective, .bytes = bytes, .nodes = nodes};
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
    row.provenance = provenance_of(curve);
    row.is_modelled = plugin::tuner::says_modelled(row.provenance);
    if (!what_.provenance.empty()) row.provenance += "; " + what_.provenance;
    return row;
  }

  const RowsFor& what_;
  std::vector<Row> rows_;
};

// Curves whose choices compete: what was measured of a communicator, or what is scaled to it.
struct Rivals {
  Collective collective{};
  uint64_t ranks_per_node = 0;
  uint64_t nodes = 0;
  uint64_t stands_for = 0;  // what is scaled: the first number of nodes
  auto operator<=>(const Rivals&) const = default;
};

}  // namespace

std::vector<Row> rows_of(const std::vector<FittedCurve>& curves, const RowsFor& what) {
  std::map<Rivals, std::vector<const FittedCurve*>> all;
  for (const FittedCurve& fitted : curves) {
    const CurveKey& key = fitted.curve.key;
    if (key.algorithm && key.protocol)
      all[{key.collective, key.ranks_per_node, key.nodes,
           fitted.curve.scaling ? fitted.curve.scaling->origin().second : 0}]
          .push_back(&fitted);
  }
  Builder builder(what);
  for (const auto& [where, rivals] : all) {
    std::vector<Candidate> candidates;
    for (const FittedCurve* const fitted : rivals) add_candidates_of(*fitted, &candidates);
    const std::optional<Scaling>& scaling = rivals.front()->curve.scaling;
    for (const Range& nodes :
         scaling ? scaling->stands_for : std::vector<Range>{{where.nodes, where.nodes}})
      builder.add(candidates, nodes);
  }
  return builder.finish();
}

double max_regret_of(const std::vector<FittedCurve>& curves) {
  std::vector<double> errors;
  for (const FittedCurve& fitted : curves)
    if (fitted.left_out) errors.push_back(*fitted.left_out);
  return std::clamp(rounded(median(errors)), plugin::tuner::Table::kMaxRegret, 1.0);
}

std::string summary_of(const FittedCurve& fitted) {
  const CurveKey& key = fitted.curve.key;
  const std::vector<TimedSize> means = means_of(fitted.curve.times);
  const auto size = [](uint64_t bytes) { return detail::bytes_text(bytes, "bytes"); };
  std::string text = text_of(key) + ": " + std::to_string(means.size()) +
                     (means.size() == 1 ? " size from " : " sizes from ") +
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
  std::vector<std::string> comments{
      "Made by noria_tune fit. Of each curve: sizes, lines, steps, errors."};
  for (const FittedCurve& fitted : curves) comments.push_back(printable(summary_of(fitted)));
  return text_of(plugin::tuner::Table{.max_regret = max_regret, .rows = rows}, comments);
}

}  // namespace noria::perf
